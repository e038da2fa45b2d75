"""Queries of one engine to graphs on servers, several at a time, each on a thread of its own."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rag_accel.clock import Clock
from rag_accel.engine_api import EngineOutput, EngineRequest, PrimitiveKind, WorkId
from rag_accel.engines.knowledge import calls
from rag_accel.engines.knowledge.lanes import Query, QueryLanes
from rag_accel.engines.knowledge.paths import Paths
from rag_accel.engines.knowledge.protocol import KnowledgeGraph, RemoteGraph, RemoteView
from rag_accel.engines.outbox import Outbox
from rag_accel.errors import EngineError, ForkedError

logger = logging.getLogger("rag_accel.engines")

CLOSE_S = 5.0
"""How long closing waits for queries under way; the server ends them by their time limit."""

SILENCE_S = 60.0
"""How long after its time limit a query is given up, if nothing was heard of it."""

PAST_DEADLINE_S = 0.1
"""How long after their deadline the server ends a query that nobody waits for any more."""

_MOST_WAIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class _Report:
    """The result of a query: paths, ``None`` for a request with too many edges, or an error."""

    lanes: QueryLanes
    query: Query
    work: Sequence[EngineRequest]
    paths: Sequence[Paths | None] = ()
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Opened:
    """A graph, its view for this engine, and its lanes."""

    graph: RemoteGraph
    views: KnowledgeGraph
    lanes: QueryLanes


class RemoteQueries:
    """The queries of one engine. All methods but ``interrupt`` run on the engine's worker thread.

    A thread is made for each query and ends with it: that costs a hundredth of a round trip, and
    nothing stays behind. A query's result goes into an outbox, which ``step`` reads.

    Args:
        clock: is that of ``EngineRequest.deadline``.
        counts: of the engine: calls and requests of each kind.
        present: returns the engine's present graphs; of others only those with work are kept.
    """

    def __init__(
        self, clock: Clock, counts: Counter[str], present: Callable[[], Iterable[object]]
    ) -> None:
        self._present = present
        self._clock = clock
        self._counts = counts
        self._opened: dict[int, _Opened] = {}
        self._live: dict[WorkId, EngineRequest] = {}
        self._reports: Outbox[_Report] = Outbox()
        self._threads: dict[Query, threading.Thread] = {}
        self._pid = os.getpid()

    def view(self, graph: RemoteGraph) -> RemoteView:
        """Return the view of a graph that requests of this engine which begin now share."""
        view = self._open(graph).views.view()
        assert isinstance(view, RemoteView), "a remote graph gives remote views"
        return view

    def put(self, graph: RemoteGraph, view: RemoteView, request: EngineRequest) -> None:
        """Take a request; nothing is sent yet.

        Raises:
            ForkedError: in a child of the process.
        """
        if os.getpid() != self._pid:
            raise ForkedError(
                "an engine over a graph in a database made before fork() was used in the child",
                hint="make the driver and the accelerator after the fork",
            )
        self._live[request.id] = request
        self._queue(self._open(graph).lanes, view, request)

    def step(self, time_s: float | None) -> list[EngineOutput]:
        """Send what may be sent, and wait up to ``time_s`` for answers, or until interrupted."""
        if not self._threads and not self._live:
            return []
        outputs = self._give_up_silent()
        self._start()
        reports = self._reports.take(0.0 if outputs else self._wait_s(time_s))
        for report in reports:
            outputs += self._ended(report)
        self._start()
        return outputs

    def cancel(self, ids: set[WorkId]) -> None:
        """Forget work; a query under way for it alone ends by its time limit, unheard."""
        for id in ids:
            self._live.pop(id, None)
        for opened in self._opened.values():
            opened.lanes.cancel(ids)

    def interrupt(self) -> None:
        """Make a waiting step return at once."""
        self._reports.interrupt()

    def close(self) -> None:
        """Forget all work and wait a little for the queries under way; idempotent."""
        self._live.clear()
        for opened in self._opened.values():
            opened.lanes.give_up()
        if os.getpid() != self._pid:  # the threads are the parent's
            return
        end = self._clock.now() + CLOSE_S
        for query, thread in self._threads.items():
            thread.join(0.0 if query.is_silent else max(0.0, end - self._clock.now()))
        left = sum(thread.is_alive() for thread in self._threads.values())
        self._threads.clear()
        if left:
            logger.warning("%d queries to a graph still run while their engine is closed", left)

    def _open(self, graph: RemoteGraph) -> _Opened:
        opened = self._opened.get(id(graph))
        if opened is None:
            present = {id(graph) for graph in self._present()}
            for key, known in list(self._opened.items()):
                if key not in present and known.lanes.is_idle:
                    del self._opened[key]
            opened = _Opened(graph, graph.for_engine(), QueryLanes(graph.in_flight))
            self._opened[id(graph)] = opened
        return opened

    def _queue(self, lanes: QueryLanes, view: RemoteView, request: EngineRequest) -> None:
        """Let a request share a query, or give it one of its own if it is known to be large."""
        if request.kind is PrimitiveKind.SEARCHING:
            lanes.share("link", view, request)
        elif view.is_large(calls.expansion(request)):
            lanes.ask_alone(view, request, calls.question(request))
        else:
            lanes.share("hop", view, request)

    def _start(self) -> None:
        """Send the queries that may run now."""
        now = self._clock.now()
        for opened in self._opened.values():
            for query in opened.lanes.start(now):
                work = tuple(query.work)
                self._counts[f"{query.kind}_calls"] += 1
                self._counts[f"{query.kind}_requests"] += len(work)
                told = (opened.lanes, query, work, _time_s(work, now), self._reports)
                thread = threading.Thread(
                    target=_run, args=told, name="rag-accel-graph-query", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError as error:  # the system has no thread left
                    self._reports.put([_Report(opened.lanes, query, work, error=error)])
                else:
                    self._threads[query] = thread

    def _ended(self, report: _Report) -> list[EngineOutput]:
        """Return the outputs of a query's requests, and queue the queries they still need."""
        lanes, query = report.lanes, report.query
        lanes.end(query)
        self._threads.pop(query, None)
        if report.error is not None:
            return self._failed(report, report.error)
        outputs: list[EngineOutput] = []
        for request, paths in zip(report.work, report.paths, strict=True):
            if self._live.get(request.id) is not request:
                continue
            if paths is None:
                lanes.ask_alone(query.view, request, calls.question(request))
            else:
                outputs.append(self._end(request, EngineOutput(request.id, "final", value=paths)))
        return outputs

    def _failed(self, report: _Report, error: BaseException) -> list[EngineOutput]:
        """End the requests that an error certainly meets, and retry others in smaller parts."""
        query = report.query
        left = [request for request in report.work if self._live.get(request.id) is request]
        is_same_question = not query.is_bounded
        if len(report.work) == 1 or is_same_question or query.view.is_down(error):
            return [
                self._end(request, EngineOutput(request.id, "error", error=error))
                for request in left
            ]
        if left:
            report.lanes.split(query, left)
        return []

    def _give_up_silent(self) -> list[EngineOutput]:
        """End the requests of queries that the server neither answers nor ends, as it should."""
        now, outputs = self._clock.now(), list[EngineOutput]()
        for opened in self._opened.values():
            limit_s = opened.graph.timeout_s
            if limit_s is None:
                continue
            late: list[EngineRequest] = []
            for query in opened.lanes.running:
                if not query.is_silent and now - query.began >= limit_s + SILENCE_S:
                    query.is_silent = True
                    late += query.work
            if opened.lanes.is_stuck:
                late += opened.lanes.give_up()
            for request in late:
                if self._live.get(request.id) is request:
                    error = _silence(limit_s)
                    outputs.append(
                        self._end(request, EngineOutput(request.id, "error", error=error))
                    )
        return outputs

    def _end(self, request: EngineRequest, output: EngineOutput) -> EngineOutput:
        del self._live[request.id]
        return output

    def _wait_s(self, time_s: float | None) -> float:
        """Return how long a step may wait before it checks the lanes again."""
        if not self._live:
            return 0.0
        now, times = self._clock.now(), [_MOST_WAIT_S if time_s is None else time_s]
        for opened in self._opened.values():
            limit_s = opened.graph.timeout_s
            if limit_s is not None:
                times += [
                    query.began + limit_s + SILENCE_S - now
                    for query in opened.lanes.running
                    if not query.is_silent
                ]
        return max(0.0, min(times))


def _run(
    lanes: QueryLanes,
    query: Query,
    work: Sequence[EngineRequest],
    time_s: float | None,
    reports: Outbox[_Report],
) -> None:
    """Run one query and report its result, on its own thread."""
    try:
        report = _Report(lanes, query, work, _answer(query, work, time_s))
    except BaseException as error:  # whatever it is, somebody waits for it
        report = _Report(lanes, query, work, error=error)
    reports.put([report])


def _answer(
    query: Query, work: Sequence[EngineRequest], time_s: float | None
) -> Sequence[Paths | None]:
    view = query.view
    if query.kind == "link":
        return calls.started(view, work, view.find(calls.queries(work), time_s))
    expansions = [calls.expansion(request) for request in work]
    ask = view.expand_small if query.is_bounded else view.expand
    return [
        None if edges is None else calls.extended(request, edges)
        for request, edges in zip(work, ask(expansions, time_s), strict=True)
    ]


def _time_s(work: Sequence[EngineRequest], now: float) -> float | None:
    """Return for how long anybody waits for a query, if that is bounded."""
    deadlines = [request.deadline for request in work]
    known = [deadline for deadline in deadlines if deadline is not None and deadline > now]
    if len(known) < len(deadlines):
        return None
    return max(known) - now + PAST_DEADLINE_S


def _silence(limit_s: float) -> EngineError:
    return EngineError(
        "a graph's server did not answer a query, nor end it",
        where="BoltGraph",
        found=f"nothing {limit_s + SILENCE_S:g} s after the query, whose limit is {limit_s:g} s",
        valid="an answer or an error within the time limit",
        hint="look at the network between here and the server",
    )

"""An engine for searches of a remote store: those that wait at the same time go in one call."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from rag_accel.engine_api import (
    EngineOutput,
    EngineRequest,
    PrimitiveKind,
    WorkId,
)
from rag_accel.engines.shared_calls import SharedCallsEngine
from rag_accel.errors import EngineOutputError
from rag_accel.telemetry.shared_spans import CallersSpan, run_apart

#: the result of a search whose call has failed: its caller makes it alone
ASK_ALONE = object()
#: names of counts
COUNTS: tuple[str, ...] = ("store_calls", "searches_in_store_calls", "failed_store_calls")


@dataclass(frozen=True, slots=True)
class StoreQuery:
    """A search of a remote store.

    Args:
        query: the part of the search that no other shares, such as its vector.
        key: searches of equal keys may go in one call.
        search: makes one call, given the queries of searches with this key; returns their results
            in order. Called in a thread of the engine, in a context that is no caller's.
        max_queries: most queries of a call, at least 1.
        caller: the span in which the caller searches.
    """

    query: Any
    key: Hashable
    search: Callable[[list[Any]], Sequence[Any]] = field(repr=False, compare=False)
    max_queries: int
    caller: CallersSpan | None = field(default=None, repr=False, compare=False)


@dataclass(slots=True, eq=False)
class _WaitingSearch:
    id: WorkId
    work: StoreQuery
    key: Hashable


class _StoreAnswer(NamedTuple):
    """The results of a call, one a search; None if it has failed."""

    searches: list[_WaitingSearch]
    results: Sequence[Any] | None


class BatchedSearchEngine(SharedCallsEngine[_StoreAnswer]):
    """An engine for SEARCHING (``StoreQuery``) on a client of a remote store.

    A search starts at once if no call of its key is in flight, with those submitted together. While
    one is, searches of that key wait, and go together in the next: in calls of ``max_queries`` at
    the same time, if they are more. They do not wait for a call that hangs. Calls of different keys
    never wait for each other. So each search sees whatever was written before it was submitted.

    The final value is what ``search`` returned for the query, or ``ASK_ALONE`` where the call has
    failed: its error tells of other callers' searches too, and each has an error of its own.

    Args:
        patience_s: seconds after which a call in flight holds up no others of its key.
    """

    def __init__(self, *, patience_s: float = 1.0) -> None:
        self._patience_s = patience_s
        super().__init__(PrimitiveKind.SEARCHING, "BatchedSearchEngine")
        self._waiting: dict[Hashable, list[_WaitingSearch]] = {}
        self._in_flight: dict[Hashable, int] = {}
        #: until when searches of a key wait for its calls in flight, in seconds of the clock
        self._held_until: dict[Hashable, float] = {}
        self._counts = dict.fromkeys(COUNTS, 0)

    @property
    def counts(self) -> Mapping[str, int]:
        return self._counts

    def describe_parts(self) -> tuple[str, ...]:
        calls, searches, _ = self._counts.values()
        return (f"{searches} searches in {calls} calls of its store",) if calls else ()

    def _clear(self) -> None:
        self._waiting.clear()

    def _job(self, request: EngineRequest) -> _WaitingSearch:
        work = self._checked_payload(request, StoreQuery, self._jobs)
        if work.max_queries < 1:
            raise self._refusal("a call of no queries", work.max_queries, "at least 1")
        key = (request.namespace, work.key)
        hash(key)  # one that cannot be hashed fails here
        return _WaitingSearch(request.id, work, key)

    def _start(self, jobs: Sequence[_WaitingSearch]) -> None:
        for search in jobs:
            self._waiting.setdefault(search.key, []).append(search)

    def _abort(self, jobs: Sequence[_WaitingSearch]) -> None:
        """Take searches out of what waits; a call that is in flight goes on for the others."""
        gone = set(jobs)
        for key in {search.key for search in jobs} & self._waiting.keys():
            self._waiting[key] = [one for one in self._waiting[key] if one not in gone]

    def _wait_s(self, most: float | None) -> float | None:
        """Return the seconds to wait for an answer before searches wait for none any more."""
        held = [self._held_until[key] for key, searches in self._waiting.items() if searches]
        if not held:
            return most
        patience = max(0.0, min(held) - time.monotonic())
        return patience if most is None else min(most, patience)

    def _send_due(self) -> None:
        now = time.monotonic()
        for key in [key for key in self._waiting if self._held_until.get(key, now) <= now]:
            waiting = self._waiting.pop(key)
            while waiting:
                most = waiting[0].work.max_queries
                self._send(waiting[:most])
                waiting = waiting[most:]

    def _send(self, call: list[_WaitingSearch]) -> None:
        key = call[0].key
        self._in_flight[key] = self._in_flight.get(key, 0) + 1
        self._held_until[key] = time.monotonic() + self._patience_s
        self._counts["store_calls"] += 1
        self._counts["searches_in_store_calls"] += len(call)
        self._run(_search, call, self._outbox.put)

    def _outputs_of(self, report: _StoreAnswer) -> list[EngineOutput]:
        key = report.searches[0].key
        self._in_flight[key] -= 1
        if not self._in_flight[key]:
            del self._in_flight[key], self._held_until[key]
        results = report.results
        if results is None:
            self._counts["failed_store_calls"] += 1
            results = [ASK_ALONE] * len(report.searches)
        outputs = list[EngineOutput]()
        for search, result in zip(report.searches, results, strict=True):
            if self._forget(search):
                outputs.append(EngineOutput(search.id, "final", result))
        return outputs


def _search(call: list[_WaitingSearch], put: Callable[[list[_StoreAnswer]], None]) -> None:
    """Make a call; of an error nothing leaves this thread, as it holds what others search for."""
    results = None
    try:
        results = _results(call)
    except BaseException:  # the waiting callers go on, each by itself
        pass
    finally:
        put([_StoreAnswer(call, results)])


def _results(call: list[_WaitingSearch]) -> Sequence[Any]:
    first, queries = call[0].work, [search.work.query for search in call]
    callers = [search.work.caller for search in call]
    results = run_apart(partial(first.search, queries), "rag_accel.shared_searches", callers)
    if len(results) != len(queries):
        raise EngineOutputError(
            "a store returned results for another number of queries",
            where="BatchedSearchEngine",
            found=f"{len(results)} for {len(queries)} queries",
            valid="one for each query",
        )
    return results

"""Spans of requests through the OpenTelemetry tracer provider of the process.

A request's spans are made when it has ended, of recorded times, on a thread of their own: nothing
that a processor or an exporter of the program's does can hold up a request or fail it.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Final

from rag_accel.engine_api import EngineOutput, EngineRequest
from rag_accel.errors import SchedulingError
from rag_accel.leaves.identity import current_request
from rag_accel.profile.assembly import assemble
from rag_accel.profile.recording import RecordedRequest
from rag_accel.profile.request_spans import (
    STAGE,
    WORKFLOW,
    MadeSpan,
    OtherSpan,
    are_same,
    operation_said,
    result_attributes,
    stage_spans,
)
from rag_accel.scheduler.driver import Check, Driver
from rag_accel.system.forks import forks
from rag_accel.telemetry import TraceEvent, Tracer
from rag_accel.telemetry.events import (
    EngineJoined,
    NodeFinished,
    RequestEnded,
    RequestId,
    RequestStarted,
    StepEnded,
    StepStarted,
)
from rag_accel.telemetry.span_attributes import DEVICE, DIMENSIONS, MODEL, PROVIDER, TOP_K
from rag_accel.telemetry.spans import RequestSpans, graph_spans

logger = logging.getLogger("rag_accel.telemetry")

SCOPE: Final = "rag_accel"
#: events that may wait while an exporter blocks; then requests have no spans
MAX_WAITING: Final = 65_536
#: attributes of objects that spans have, by operation; those of others are for calls of models
_OF_OBJECTS: Mapping[str, tuple[str, ...]] = {
    "embeddings": (MODEL, PROVIDER, DEVICE, DIMENSIONS),
    "retrieval": (TOP_K, DEVICE),
    **dict.fromkeys(("expand", "prune", "ingest"), ()),
}
#: how long events are gathered, in seconds
GATHER_S: Final = 0.05
#: requests of single leaves whose spans are made and of which more leaves may come
MAX_SINGLE: Final = 512
#: steps that wait for the spans of their requests
MAX_STEPS: Final = 1024
#: longest that the end of an accelerator, or of the process, waits for spans, in seconds
CLOSE_S: Final = 5.0


def import_trace() -> Any:
    """Return ``opentelemetry.trace``.

    Raises:
        ImportError: if it is not installed; names the extra.
    """
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise ImportError(
            "telemetry='spans' needs OpenTelemetry: pip install 'rag-accel[otel]'",
            name=error.name,
        ) from error
    return trace


def _current_spans() -> RequestSpans | None:
    """Return the spans of the request whose code runs here."""
    identity = current_request.get()
    if identity is not None and identity.spans is not None and not identity.has_ended:
        return identity.spans
    return graph_spans.get()


class _Watch:
    """A span processor that notes which spans begin within a request; others' have no effect."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        spans = _current_spans()
        if spans is not None:
            spans.note(span)

    def on_end(self, span: Any) -> None: ...

    def _on_ending(self, span: Any) -> None: ...

    def shutdown(self) -> None: ...

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        until = time.monotonic() + timeout_millis / 1000
        flushed = [export.flush(until - time.monotonic()) for export in list(_exports)]
        return all(flushed)


_exports: weakref.WeakSet[SpanExport] = weakref.WeakSet()
_watched: weakref.WeakSet[Any] = weakref.WeakSet()
_watching = threading.Lock()


def _watch(provider: Any) -> None:
    """Have the spans seen that others make by a provider; the API's own providers make none."""
    add = getattr(provider, "add_span_processor", None)
    with _watching:
        if add is not None and provider not in _watched:
            _watched.add(provider)
            add(_Watch())


@dataclass(slots=True)
class _OpenRequest:
    """A request under way."""

    events: list[TraceEvent] = field(default_factory=list[TraceEvent])
    batches: dict[str, int] = field(default_factory=dict[str, int])
    is_single: bool = False


class SpanExport:
    """A sink of trace events that makes spans of them, and knows the spans around requests.

    Args:
        tracer: whose events it takes; closes it.
        driver: whose events these are.
        steps: whether there is a span of each engine step, too.
        attributes: returns those that an engine has for spans of its work.

    Raises:
        ImportError: if OpenTelemetry is not installed.
    """

    def __init__(
        self,
        tracer: Tracer,
        driver: Driver,
        steps: bool,
        attributes: Callable[[str], Mapping[str, Any]],
    ) -> None:
        self._trace = import_trace()
        self._driver = driver
        self._now = driver.now
        self._makes_steps = steps
        self._attributes = attributes
        self._provider: Any = None
        #: the provider of the thread's last span, and its tracer
        self._used: tuple[Any, Any] = None, None
        self._table: dict[RequestId, RequestSpans] = {}
        self._queue: SimpleQueue[TraceEvent | threading.Event | None] = SimpleQueue()
        self._open: dict[RequestId, _OpenRequest] = {}
        self._owned: dict[str, bool] = {}
        self._single: deque[RequestId] = deque()
        self._steps: deque[StepEnded] = deque()
        #: contexts of the spans that steps link to
        self._made: dict[tuple[RequestId, str], Any] = {}
        self._closing = threading.Event()
        self._failed: set[str] = set()
        #: events that were dropped since the exporter did not keep up
        self.dropped = 0
        #: some of them since the thread looked last
        self._has_lost = False
        self._forks = forks.number
        self._thread = threading.Thread(target=self._run, name="rag-accel-spans", daemon=True)
        self._thread.start()
        _exports.add(self)
        tracer.add_sink(self)

    # Where requests are made -------------------------------------------------------------------

    def request(
        self, request: RequestId, name: str = "", limit_s: float | None = None
    ) -> RequestSpans:
        """Return what notes the spans around a request that is made here."""
        provider = self._trace.get_tracer_provider()
        if provider is not self._provider:
            try:
                _watch(provider)
            except Exception as error:  # the program's provider
                self._lose(error)
            if self._provider is None:
                # Later than the provider's own, so that it runs before the provider is gone.
                atexit.register(_flush_at_exit, weakref.ref(self))
            self._provider = provider
        # Of one that begins while events are lost nothing is made.
        table = self._table if self._queue.qsize() < MAX_WAITING else {}
        current = self._trace.get_current_span
        return RequestSpans(request, name, current, table, limit_s, self._headers)

    def _headers(self, span: Any) -> Mapping[str, str] | None:
        """Return the headers that the program's propagator writes for a span."""
        if not span.get_span_context().is_valid:
            return None
        from opentelemetry import propagate

        written: dict[str, str] = {}
        try:
            propagate.inject(written, self._trace.set_span_in_context(span, _empty_context()))
        except Exception as error:  # the program's propagator
            self._lose(error)
        return written or None

    def noting(self, check: Check) -> Check:
        """Return a check of outputs that notes what spans have of results; on engines' threads."""
        table = self._table

        def checked(request: EngineRequest, output: EngineOutput) -> EngineOutput:
            output = check(request, output)
            spans = table.get(int(request.request_id)) if output.kind == "final" else None
            if spans is not None:
                node = request.id.removeprefix(f"{request.request_id}/")
                found = result_attributes(request.kind, request.payload, output.value)
                spans.results[node] = found
            return output

        return checked

    # As a sink ---------------------------------------------------------------------------------

    def write(self, event: TraceEvent) -> None:
        """Take one event; without waiting, from any thread."""
        if self._queue.qsize() < MAX_WAITING:
            self._queue.put(event)
        else:
            self.dropped += 1
            self._has_lost = True
            if self.dropped == 1:
                logger.warning("the span exporter does not keep up: spans of requests are lost")

    def flush(self, timeout_s: float) -> bool:
        """Make the spans of what has ended; tell whether that was done within a time.

        A forked child has nothing to make: the thread is its parent's.
        """
        if forks.number != self._forks:
            return True
        if not self._closing.is_set() and not self._driver.closed:
            with suppress(SchedulingError):  # closed, or another process's
                self._driver.ask(lambda: None)
        done = threading.Event()
        self._queue.put(done)
        return done.wait(max(0.0, timeout_s))

    def close(self) -> None:
        """Make the spans of what has ended, within ``CLOSE_S`` seconds, and end the thread."""
        self.stop()
        self._thread.join(CLOSE_S)

    def stop(self) -> None:
        """Have the thread end soon."""
        self._closing.set()
        self._queue.put(None)

    # On the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        is_open = True
        while is_open:
            first = self._queue.get()
            if not isinstance(first, threading.Event):
                self._closing.wait(GATHER_S)
            flushed: list[threading.Event] = []
            for taken in itertools.chain((first,), self._waiting()):
                if taken is None:
                    is_open = False
                elif isinstance(taken, threading.Event):
                    flushed.append(taken)
                else:
                    self._guarded(taken)
            if self._has_lost:
                self._forget_open()
            for done in flushed:
                done.set()

    def _forget_open(self) -> None:
        """Make no spans of requests under way: the event of their end may be lost."""
        self._has_lost = False
        for known in (self._open, self._table, self._single):
            known.clear()

    def _waiting(self) -> Iterable[TraceEvent | threading.Event | None]:
        try:
            while True:
                yield self._queue.get_nowait()
        except Empty:
            return

    def _guarded(self, event: TraceEvent) -> None:
        try:
            self._take(event)
        except Exception as error:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        name = type(error).__name__  # never its text, which may hold the program's
        if name not in self._failed:
            self._failed.add(name)
            logger.warning("spans are lost: the tracer provider raised %s", name)

    def _take(self, event: TraceEvent) -> None:
        match event:
            case EngineJoined():
                self._owned[event.engine] = event.owned
            case StepStarted():
                for request, node in event.members:
                    if (known := self._open.get(request)) is not None:
                        batch = max(known.batches.get(node, 0), len(event.members))
                        known.batches[node] = batch
            case StepEnded():
                if self._makes_steps:
                    self._steps.append(event)
                    self._make_steps()
            case RequestStarted() if event.request_id in self._table:
                known = self._open.setdefault(event.request_id, _OpenRequest())
                known.is_single = event.origin == "leaf"
                known.events.append(event)
            case RequestEnded():
                self._end(event.request_id, event)
            case _:
                request = getattr(event, "request_id", None)
                known = None if request is None else self._open.get(request)
                if request is not None and known is not None:
                    known.events.append(event)
                    if known.is_single and isinstance(event, NodeFinished):
                        self._end(request)

    def _end(self, request: RequestId, end: RequestEnded | None = None) -> None:
        known = self._open.get(request)
        if known is None:
            self._table.pop(request, None)
            return
        del self._open[request]
        events = [*known.events, end] if end is not None else known.events
        (recorded,) = assemble(events).requests
        if not recorded.whole:
            self._open[request] = known  # a leaf of it is under way
            return
        if known.is_single:
            spans = self._table[request]
            self._single.append(request)
            if len(self._single) > MAX_SINGLE:
                self._table.pop(self._single.popleft(), None)
        else:
            spans = self._table.pop(request)
        made = stage_spans(recorded, events, known.batches, self._owned, spans.results)
        self._make(spans, recorded, made)
        self._make_steps()

    def _make(self, spans: RequestSpans, recorded: RecordedRequest, made: list[MadeSpan]) -> None:
        """Make the spans of a request that no instrumentor has made."""
        since = time.time_ns() - int(self._now() * 1e9)
        start, end = (since + int(at * 1e9) for at in (recorded.arrived_s, recorded.ended_s))
        others = [_other(span) for span in (spans.around, *spans.others) if _is_foreign(span)]
        parent = spans.around
        is_told = recorded.origin == "program" and are_same(WORKFLOW, start, end, others)
        if recorded.origin != "leaf" and not is_told:
            attributes: dict[str, Any] = {
                "gen_ai.operation.name": WORKFLOW,
                "gen_ai.agent.name": spans.name,
                "rag_accel.request.id": str(recorded.id),
            }
            if spans.limit_s is not None:
                attributes["rag_accel.deadline_ms"] = 1000 * spans.limit_s
            if recorded.outcome != "done" or spans.error:
                attributes["error.type"] = spans.error or recorded.outcome
            parent = self._span(f"{WORKFLOW} {spans.name}", parent, start, end, attributes)
        for stage in made:
            start, end = (since + int(at * 1e9) for at in (stage.start_s, stage.end_s))
            leaf = next((spans.leaves[node] for node in stage.nodes if node in spans.leaves), None)
            if leaf is not None and leaf.around is not spans.around:
                around = leaf.around
            else:
                instrumented = (
                    other
                    for other in others
                    if other.operation and other.span is not spans.around
                    if other.has_around(start, end)
                )
                inner = max(instrumented, key=lambda other: other.start_ns, default=None)
                around = parent if inner is None else inner.span
            seen = others
            if leaf is not None and _is_foreign(leaf.around):
                seen = [*others, _other(leaf.around)]
            if are_same(_known_as(stage.operation), start, end, seen):
                self._note_made(recorded.id, stage, around)
                continue
            name, attributes = self._named(stage, leaf.attributes if leaf is not None else {})
            span = self._span(name, around, start, end, attributes)
            self._note_made(recorded.id, stage, span)

    def _named(self, stage: MadeSpan, asked: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        engine = stage.engine.rpartition(".")[2]
        if stage.operation == STAGE:
            return f"{STAGE} {stage.attributes.get('rag_accel.stage', engine)}", stage.attributes
        known = {**self._attributes(stage.engine), **asked}
        names = _OF_OBJECTS.get(stage.operation, (MODEL, PROVIDER, DEVICE))
        attributes = {name: known[name] for name in names if name in known} | stage.attributes
        if stage.operation in ("retrieval", "expand", "prune", "ingest"):
            return f"{stage.operation} {engine}", {**attributes, "gen_ai.data_source.id": engine}
        return f"{stage.operation} {attributes.get(MODEL, engine)}", attributes

    def _span(
        self,
        name: str,
        parent: Any,
        start_ns: int,
        end_ns: int,
        attributes: dict[str, Any],
        links: Iterable[Any] = (),
    ) -> Any:
        trace = self._trace
        provider = trace.get_tracer_provider()
        if provider is not self._used[0]:  # to get a tracer takes as long as to make a span
            self._used = provider, provider.get_tracer(SCOPE)
        tracer = self._used[1]
        is_call = attributes.get("gen_ai.operation.name") not in (None, WORKFLOW)
        span = tracer.start_span(
            name,
            context=trace.set_span_in_context(parent, _empty_context()),
            kind=trace.SpanKind.CLIENT if is_call else trace.SpanKind.INTERNAL,
            attributes=attributes,
            links=[trace.Link(context) for context in links],
            start_time=start_ns,
        )
        if "error.type" in attributes:
            span.set_status(trace.StatusCode.ERROR)
        span.end(end_time=max(start_ns, end_ns))
        return span

    def _note_made(self, request: RequestId, stage: MadeSpan, span: Any) -> None:
        if self._makes_steps:
            for node in stage.nodes:
                self._made[request, node] = span.get_span_context()

    def _make_steps(self) -> None:
        """Make the spans of the oldest steps, once their requests have theirs."""
        while self._steps:
            step = self._steps[0]
            is_waiting = any(request in self._open for request, _ in step.members)
            if is_waiting and len(self._steps) <= MAX_STEPS:
                return
            self._steps.popleft()
            links = [self._made[member] for member in step.members if member in self._made]
            end = time.time_ns() - int((self._now() - step.time_s) * 1e9)
            attributes: dict[str, Any] = {
                "rag_accel.engine": step.engine,
                "rag_accel.batch.size": len(step.members),
                "rag_accel.threads": step.threads,
            }
            if not step.ok:
                attributes["error.type"] = "failed"
            start = end - int(step.duration_s * 1e9)
            self._span("engine step", self._trace.INVALID_SPAN, start, end, attributes, links)
        self._made.clear()


def _empty_context() -> Any:
    from opentelemetry.context import Context

    return Context()


def _flush_at_exit(export: weakref.ref[SpanExport]) -> None:
    alive = export()
    if alive is not None:
        alive.flush(CLOSE_S)


def _known_as(operation: str) -> str:
    """Return the operation by which instrumentors' spans are compared."""
    return "chat" if operation == "text_completion" else operation


def _is_foreign(span: Any) -> bool:
    """Tell whether a span can be read, as those of OpenTelemetry's SDK can."""
    return getattr(span, "start_time", None) is not None


def _other(span: Any) -> OtherSpan:
    said = operation_said(getattr(span, "attributes", None))
    return OtherSpan(said, span.start_time, span.end_time, span)

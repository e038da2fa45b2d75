"""A recording as Chrome trace JSON, to be opened in ui.perfetto.dev or chrome://tracing.

Two processes: ``engines`` has a track per engine with its steps, or its calls, and a counter of
what is queued; ``requests`` has a track per request with its primitives, each from the moment it
was ready, cut into its queued and its running part. What overlaps gets further tracks of the same
name. Arrows lead from a primitive to those that waited for it.

Times are microseconds since the first event. Equal recordings give equal JSON. It holds names of
stages and engines, numbers and outcomes; no prompt, document or error text ever gets here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from operator import attrgetter
from typing import Any, TypeVar

from rag_accel.profile.recording import (
    RecordedEngine,
    RecordedPrimitive,
    RecordedRequest,
    RecordedStep,
    Recording,
)

ENGINES, REQUESTS = 1, 2
"""Process ids of the two groups of tracks."""

_Json = dict[str, Any]
_Span = TypeVar("_Span", RecordedPrimitive, RecordedStep)


def chrome_trace(recording: Recording) -> _Json:
    """Return the recording as a JSON object in the trace event format."""
    writer = _Writer(_first_s(recording))
    writer.name_process(ENGINES, "engines")
    writer.name_process(REQUESTS, "requests")
    for engine in recording.engines.values():
        writer.write_engine(engine, recording)
    for request in recording.requests:
        writer.write_request(request)
    return {
        "traceEvents": [*writer.names, *sorted(writer.events, key=_order)],
        "displayTimeUnit": "ms",
        "otherData": {"dropped_events": recording.dropped},
    }


class _Writer:
    """A writer of trace events, one part of a recording after the other."""

    def __init__(self, first_s: float) -> None:
        self.names: list[_Json] = []
        self.events: list[_Json] = []
        self._first_s = first_s
        self._tracks = count(1)
        self._arrows = count(1)

    def name_process(self, process: int, name: str) -> None:
        self._meta(process, 0, "process_name", name=name)
        self._meta(process, 0, "process_sort_index", sort_index=process)

    def write_engine(self, engine: RecordedEngine, recording: Recording) -> None:
        """Write an engine's steps or calls, and how much waits for it."""
        used = [
            primitive
            for request in recording.requests
            for primitive in (*request.primitives, *request.nested)
            if primitive.engine == engine.name
        ]
        steps = [step for step in recording.steps if step.engine == engine.name]
        title = engine.name if engine.owned else f"{engine.name} (borrowed)"
        if engine.owned or steps:
            for track, step in self._placed(ENGINES, title, steps, attrgetter("started_s")):
                self._slice(ENGINES, track, *_step_slice(step), step.started_s, step.ended_s)
        else:
            calls = [primitive for primitive in used if primitive.ended_s > primitive.started_s]
            for track, call in self._placed(ENGINES, title, calls, attrgetter("started_s")):
                told = {"stage": call.stage, "outcome": _outcome(call.outcome)}
                self._slice(ENGINES, track, call.name, told, call.started_s, call.ended_s)
        self._count_queue(engine.name, used)

    def write_request(self, request: RecordedRequest) -> None:
        """Write a request's primitives and their dependencies."""
        title = f"request {request.id} ({request.origin}, {_outcome(request.outcome)})"
        every = sorted([*request.primitives, *request.nested], key=attrgetter("ready_s"))
        where: dict[str, tuple[int, RecordedPrimitive]] = {}
        for track, primitive in self._placed(REQUESTS, title, every, attrgetter("ready_s")):
            where[primitive.name] = (track, primitive)
            told = {
                "kind": primitive.kind,
                "engine": primitive.engine,
                "outcome": _outcome(primitive.outcome),
                "depth": primitive.depth,
                "size": primitive.size,
            }
            self._slice(REQUESTS, track, primitive.name, told, primitive.ready_s, primitive.ended_s)
            if primitive.started_s > primitive.ready_s:
                self._slice(REQUESTS, track, "queued", {}, primitive.ready_s, primitive.started_s)
            if primitive.ended_s > primitive.started_s:
                self._slice(REQUESTS, track, "running", {}, primitive.started_s, primitive.ended_s)
        for track, primitive in where.values():
            for name in primitive.after:
                if (
                    name in where
                    and where[name][1].running_s > 0
                    and primitive.ended_s > primitive.ready_s
                ):
                    self._arrow(*where[name], track, primitive)

    def _placed(
        self, process: int, title: str, spans: Sequence[_Span], start: Callable[[_Span], float]
    ) -> Iterator[tuple[int, _Span]]:
        """Yield each span with a track on which it overlaps none; an empty engine has one too."""
        free: list[tuple[float, int]] = []
        used = 0
        for span in sorted(spans, key=start):
            if free and free[0][0] <= start(span):
                track = heapq.heappop(free)[1]
            else:
                used += 1
                track = self._track(process, title if used == 1 else f"{title} +{used - 1}")
            heapq.heappush(free, (span.ended_s, track))
            yield track, span
        if not used:
            self._track(process, title)

    def _track(self, process: int, title: str) -> int:
        track = next(self._tracks)
        self._meta(process, track, "thread_name", name=title)
        self._meta(process, track, "thread_sort_index", sort_index=track)
        return track

    def _count_queue(self, engine: str, used: Iterable[RecordedPrimitive]) -> None:
        changes: dict[float, int] = {}
        for primitive in used:
            if primitive.started_s > primitive.ready_s:
                changes[primitive.ready_s] = changes.get(primitive.ready_s, 0) + 1
                changes[primitive.started_s] = changes.get(primitive.started_s, 0) - 1
        queued = 0
        for at in sorted(changes):
            queued += changes[at]
            self._event("C", ENGINES, 0, at, name=f"queued {engine}", args={"primitives": queued})

    def _arrow(
        self, source_track: int, source: RecordedPrimitive, track: int, target: RecordedPrimitive
    ) -> None:
        told: _Json = {"name": "waited for", "cat": "dependency", "id": next(self._arrows)}
        self._event("s", REQUESTS, source_track, source.started_s, **told)
        self._event("f", REQUESTS, track, target.ready_s, bp="e", **told)

    def _slice(
        self, process: int, track: int, name: str, told: _Json, start_s: float, end_s: float
    ) -> None:
        length = (self._nanoseconds(end_s) - self._nanoseconds(start_s)) / 1000
        self._event("X", process, track, start_s, name=name, dur=length, args=told)

    def _event(self, phase: str, process: int, track: int, at: float, **parts: Any) -> None:
        when = self._nanoseconds(at) / 1000
        self.events.append({"ph": phase, "pid": process, "tid": track, "ts": when, **parts})

    def _meta(self, process: int, track: int, what: str, **args: Any) -> None:
        self.names.append({"ph": "M", "pid": process, "tid": track, "name": what, "args": args})

    def _nanoseconds(self, at: float) -> int:
        # Whole ones, so that a part never sticks out of the whole by a rounding error.
        return round((at - self._first_s) * 1e9)


def _step_slice(step: RecordedStep) -> tuple[str, _Json]:
    number = len(step.members)
    told = {"batch": number, "threads": step.threads, "step": step.step, "ok": step.ok}
    told["members"] = [f"{request}/{node}" for request, node in step.members]
    return f"step of {number}", told


def _first_s(recording: Recording) -> float:
    starts = [request.arrived_s for request in recording.requests]
    return min([*starts, *(step.started_s for step in recording.steps)], default=0.0)


def _order(event: _Json) -> tuple[float, int, int, float]:
    """Sort by time; of slices that begin together the longer one stands before what is in it."""
    return event["ts"], event["pid"], event["tid"], -event.get("dur", 0.0)


def _outcome(outcome: str | None) -> str:
    return outcome or "unfinished"

"""The rows of a profile: one per stage and kind of primitive, one per engine."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from rag_accel.errors import ConfigError
from rag_accel.profile.assembly import assemble
from rag_accel.profile.chrome_trace import chrome_trace
from rag_accel.profile.critical_path import critical_path
from rag_accel.profile.recording import RecordedPrimitive, RecordedRequest, Recording
from rag_accel.profile.replay import PassSaving
from rag_accel.profile.run_page import page_data, run_page
from rag_accel.system.files import replaced_file
from rag_accel.telemetry.events import TraceEvent
from rag_accel.telemetry.metrics import percentile
from rag_accel.telemetry.tracer import Tracer

_Row = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class StageProfile:
    """A summary of the primitives of one kind of one stage; times in milliseconds.

    Args:
        count: how many ended; ``failed`` of them otherwise than done.
        waiting_ms: mean, from the request's arrival until all it waited for had ended.
        queued_ms: mean, from then until its engine took it.
        running_ms: mean, from then until its end.
        p50_ms, p99_ms: of queued and running together.
        critical_share: how much of all requests' time was spent in these primitives while they
            were on the critical path, from 0 to 1.
    """

    stage: str
    kind: str
    engine: str
    count: int
    failed: int
    waiting_ms: float
    queued_ms: float
    running_ms: float
    p50_ms: float
    p99_ms: float
    critical_share: float


@dataclass(frozen=True, slots=True)
class EngineUse:
    """A summary of one engine.

    Args:
        steps: steps of an owned engine; calls of a borrowed one.
        mean_batch: members of a step on average; 1 for calls.
        busy_share: how much of the recorded time it had something to do, from 0 to 1.
    """

    engine: str
    owned: bool
    steps: int
    mean_batch: float
    busy_share: float


def stage_profiles(
    done: Sequence[RecordedRequest],
) -> tuple[tuple[StageProfile, ...], float]:
    """Return the rows in the order in which they first occur, and the share outside of all."""
    rows: dict[_Row, list[tuple[RecordedRequest, RecordedPrimitive]]] = {}
    critical_s: dict[_Row, float] = {}
    outside_s = 0.0
    for request in done:
        for primitive in (*request.primitives, *request.nested):
            rows.setdefault(_row(primitive), []).append((request, primitive))
        for part in critical_path(request).parts:
            if part.primitive is None:
                outside_s += part.length_s
            else:
                row = _row(part.primitive)
                critical_s[row] = critical_s.get(row, 0.0) + part.length_s
    all_s = sum(request.makespan_s for request in done)
    stages = tuple(
        _stage(row, several, _share(critical_s.get(row, 0.0), all_s))
        for row, several in rows.items()
    )
    return stages, _share(outside_s, all_s)


def engine_uses(recording: Recording) -> tuple[EngineUse, ...]:
    """Return the engines that had anything to do."""
    steps: dict[str, list[tuple[float, float, int]]] = {name: [] for name in recording.engines}
    calls: dict[str, list[tuple[float, float, int]]] = {name: [] for name in recording.engines}
    for step in recording.steps:
        span = (step.started_s, step.ended_s, len(step.members))
        steps.setdefault(step.engine, []).append(span)
    for request in recording.requests:
        for primitive in (*request.primitives, *request.nested):
            calls[primitive.engine].append((primitive.started_s, primitive.ended_s, 1))
    span_s = _span_s(recording)
    uses: list[EngineUse] = []
    for name, engine in recording.engines.items():
        if spans := steps[name] or calls[name]:
            mean = sum(members for *_, members in spans) / len(spans)
            share = _share(_covered_s((start, end) for start, end, _ in spans), span_s)
            uses.append(EngineUse(name, engine.owned, len(spans), mean, share))
    return tuple(uses)


def _row(primitive: RecordedPrimitive) -> _Row:
    return primitive.stage, primitive.kind, primitive.engine


def _stage(
    row: _Row, several: Sequence[tuple[RecordedRequest, RecordedPrimitive]], share: float
) -> StageProfile:
    number = len(several)
    ms = 1000 / number
    times_ms = sorted(1000 * (primitive.ended_s - primitive.ready_s) for _, primitive in several)
    return StageProfile(
        *row,
        count=number,
        failed=sum(primitive.outcome != "done" for _, primitive in several),
        waiting_ms=ms
        * sum(primitive.ready_s - request.arrived_s for request, primitive in several),
        queued_ms=ms * sum(primitive.queued_s for _, primitive in several),
        running_ms=ms * sum(primitive.running_s for _, primitive in several),
        p50_ms=percentile(times_ms, 0.5),
        p99_ms=percentile(times_ms, 0.99),
        critical_share=share,
    )


def _span_s(recording: Recording) -> float:
    starts = [request.arrived_s for request in recording.requests]
    ends = [request.ended_s for request in recording.requests]
    return max(ends) - min(starts)


def _covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Return how many seconds at least one span covers."""
    covered, until = 0.0, -math.inf
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


_RECORD_FIRST = "run something first; trace_events bounds how many events are kept"
_STAGE_HEAD = (
    *("stage", "kind", "engine", "count", "waiting", "queued", "running", "p50", "p99"),
    "critical",
)
_SAVING_HEAD = ("pass", "saved ms")
_ENGINE_HEAD = ("engine", "driven", "steps", "batch", "busy")


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile of past requests, to ``print`` or to save as a trace for ui.perfetto.dev.

    The table is about the requests that were done and are recorded whole. Calls made inside a
    graph's own functions have rows, and no share: their time is the function's.

    Args:
        requests: how many those are; ``failed`` ended otherwise, ``left_out`` still live or are
            not recorded whole.
        p50_ms, p99_ms: of the requests' time from arrival to end.
        outside_share: how much of that time no primitive of the critical path was ready.
        dropped: events that newer ones had overwritten.
    """

    requests: int
    failed: int
    left_out: int
    p50_ms: float
    p99_ms: float
    outside_share: float
    dropped: int
    stages: tuple[StageProfile, ...]
    engines: tuple[EngineUse, ...]
    recording: Recording = field(repr=False)
    #: what each pass that changes the graph asked about saves a request of it
    savings: tuple[PassSaving, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers as plain JSON values."""
        names = [field_.name for field_ in fields(self) if field_.name != "recording"]
        told: dict[str, Any] = {name: getattr(self, name) for name in names}
        told["stages"] = [asdict(stage) for stage in self.stages]
        told["savings"] = [asdict(saving) for saving in self.savings]
        told["engines"] = [asdict(engine) for engine in self.engines]
        return told

    def __str__(self) -> str:
        """Return the tables as text; times in milliseconds."""
        head = f"{self.requests} request{'' if self.requests == 1 else 's'} done"
        notes = ((self.failed, "not done"), (self.left_out, "left out"))
        others = [f"{number} {what}" for number, what in notes if number]
        if self.dropped:
            others.append(f"{self.dropped} older events overwritten")
        lines = [
            f"profile: {', '.join([head, *others])}",
            f"  p50 {self.p50_ms:.2f} ms, p99 {self.p99_ms:.2f} ms, "
            f"{100 * self.outside_share:.1f} % outside of any primitive",
        ]
        if self.stages:
            lines += [
                "stages (ms):",
                *columns([_STAGE_HEAD, *map(_stage_cells, self.stages)], texts=3),
            ]
        if self.engines:
            lines += [
                "engines:",
                *columns([_ENGINE_HEAD, *map(_engine_cells, self.engines)], texts=2),
            ]
        if self.savings:
            lines += [
                "passes (estimated by replay):",
                *columns([_SAVING_HEAD, *map(_saving_cells, self.savings)], texts=1),
            ]
        return "\n".join(lines)

    def save_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the recording as Chrome trace JSON, in one step, readable by its owner only.

        What stands at ``path`` is replaced once the new file is complete; a link is followed.

        Raises:
            ConfigError: if the file cannot be written.
        """
        _save(path, json.dumps(chrome_trace(self.recording), separators=(",", ":")))

    def save_page(self, path: str | os.PathLike[str]) -> None:
        """Write the recording as a page of HTML that needs nothing else, as ``save_chrome_trace``.

        Raises:
            ConfigError: if the file cannot be written.
        """
        _save(path, run_page(page_data(self.recording, "rag_accel: a recorded run")))


def _save(path: str | os.PathLike[str], text: str) -> None:
    try:
        with replaced_file(Path(path).resolve()) as file:
            file.write(text.encode(errors="replace"))
    except OSError as error:
        raise ConfigError(
            "the trace file cannot be written",
            where=str(path),
            found=type(error).__name__,
            valid="a writable path in an existing directory",
        ) from error


def profile_of(tracer: Tracer) -> Profile:
    """Return a profile of what a tracer has in memory.

    Raises:
        ConfigError: if it records nothing, or has recorded no request that is done.
    """
    if not tracer.records:
        raise ConfigError(
            "nothing is recorded, so there is nothing to profile",
            where="option trace_events",
            found=0,
            valid="from 1",
            hint="set trace_events (RAG_ACCEL_TRACE_EVENTS) before the run; 8192 is the default",
        )
    return profile_events(tracer.events(), tracer.dropped)


def profile_events(events: Iterable[TraceEvent], dropped: int = 0) -> Profile:
    """Return a profile of recorded events, of which ``dropped`` older ones were overwritten.

    Raises:
        ConfigError: if no request among them is done and recorded whole.
    """
    recording = assemble(events, dropped)
    done = recording.done
    if not done:
        number = len(recording.requests)
        raise ConfigError(
            "no request is recorded that is done, so there is nothing to profile",
            where="the recorded events",
            found=f"{number} requests that failed, live or are cut off; {dropped} events dropped",
            valid="at least one request recorded from arrival to end",
            hint="raise trace_events: newer events overwrote it" if dropped else _RECORD_FIRST,
        )
    whole = sum(request.whole for request in recording.requests)
    times_ms = sorted(1000 * replay.makespan_s for replay in done)
    stages, outside_share = stage_profiles(done)
    return Profile(
        requests=len(done),
        failed=whole - len(done),
        left_out=len(recording.requests) - whole,
        p50_ms=percentile(times_ms, 0.5),
        p99_ms=percentile(times_ms, 0.99),
        outside_share=outside_share,
        dropped=dropped,
        stages=stages,
        engines=engine_uses(recording),
        recording=recording,
    )


def _stage_cells(row: StageProfile) -> tuple[str, ...]:
    count = f"{row.count} ({row.failed} failed)" if row.failed else str(row.count)
    times = (row.waiting_ms, row.queued_ms, row.running_ms, row.p50_ms, row.p99_ms)
    figures = (f"{time:.2f}" for time in times)
    return (row.stage, row.kind, row.engine, count, *figures, f"{100 * row.critical_share:.1f} %")


def _engine_cells(use: EngineUse) -> tuple[str, ...]:
    driven = "owned" if use.owned else "borrowed"
    return (
        *(use.engine, driven, str(use.steps)),
        *(f"{use.mean_batch:.2f}", f"{100 * use.busy_share:.1f} %"),
    )


def _saving_cells(saving: PassSaving) -> tuple[str, ...]:
    known = saving.saved_ms
    return (saving.name, "not replayable" if known is None else f"{known:.2f}")


def columns(lines: Sequence[tuple[str, ...]], texts: int) -> list[str]:
    """Align columns, the first ``texts`` to the left and those of figures to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if place < texts else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]

"""Compute the rows of a profile: one per stage and kind of primitive, one per engine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rag_accel.explain.critical_path import critical_path
from rag_accel.explain.recording import RecordedPrimitive, RecordedRequest, Recording

_Row = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class StageProfile:
    """Sum up the primitives of one kind of one stage; times in milliseconds.

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
    """Sum up one engine.

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
        for one in (*request.primitives, *request.nested):
            rows.setdefault(_row(one), []).append((request, one))
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
        for one in (*request.primitives, *request.nested):
            calls[one.engine].append((one.started_s, one.ended_s, 1))
    span_s = _span_s(recording)
    uses: list[EngineUse] = []
    for name, engine in recording.engines.items():
        if spans := steps[name] or calls[name]:
            mean = sum(members for *_, members in spans) / len(spans)
            share = _share(_covered_s((start, end) for start, end, _ in spans), span_s)
            uses.append(EngineUse(name, engine.owned, len(spans), mean, share))
    return tuple(uses)


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of the values do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _row(one: RecordedPrimitive) -> _Row:
    return one.stage, one.kind, one.engine


def _stage(
    row: _Row, several: Sequence[tuple[RecordedRequest, RecordedPrimitive]], share: float
) -> StageProfile:
    number = len(several)
    ms = 1000 / number
    times_ms = sorted(1000 * (one.ended_s - one.ready_s) for _, one in several)
    return StageProfile(
        *row,
        count=number,
        failed=sum(one.outcome != "done" for _, one in several),
        waiting_ms=ms * sum(one.ready_s - request.arrived_s for request, one in several),
        queued_ms=ms * sum(one.queued_s for _, one in several),
        running_ms=ms * sum(one.running_s for _, one in several),
        p50_ms=percentile(times_ms, 0.5),
        p99_ms=percentile(times_ms, 0.99),
        critical_share=share,
    )


def _span_s(recording: Recording) -> float:
    starts = [one.arrived_s for one in recording.requests]
    ends = [one.ended_s for one in recording.requests]
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

"""The chain of primitives that a request's time was spent on, and what had time to spare.

Backwards from the request's end: the primitive that ended last, then of what it waited for the
one that ended last, and so on. The chain's parts cover the request from arrival to end without a
gap, so their lengths add up to its makespan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rag_accel.profile.recording import RecordedPrimitive, RecordedRequest

Spent = Literal["outside", "queued", "running"]
"""``outside``: no primitive of the chain was ready (admission, the program's own code)."""


@dataclass(frozen=True, slots=True)
class PathSegment:
    """One part of the chain; ``primitive`` is None outside of any."""

    spent: Spent
    start_s: float
    end_s: float
    primitive: RecordedPrimitive | None = None

    @property
    def length_s(self) -> float:
        """Return its seconds."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """The longest chain of waits of one request.

    Args:
        parts: in order, each beginning where the one before ends; none is empty.
        slack_s: by name, how many seconds later each primitive could have ended without the
            request ending later, if all else had taken as long; 0 on the path.
    """

    request: RecordedRequest
    primitives: tuple[RecordedPrimitive, ...]
    parts: tuple[PathSegment, ...]
    slack_s: Mapping[str, float]

    @property
    def length_s(self) -> float:
        """Return its seconds: the request's makespan."""
        return sum(part.length_s for part in self.parts)


@dataclass(frozen=True, slots=True)
class StageTimes:
    """The times of one stage of one request, in milliseconds.

    Args:
        waiting_ms: from the request's arrival until all that a primitive waited for had ended.
        queued_ms: from then until its engine took it.
        running_ms: from then until its end.
    """

    stage: str
    waiting_ms: float
    queued_ms: float
    running_ms: float


def critical_path(request: RecordedRequest) -> CriticalPath:
    """Return the chain that a request's makespan consists of, and the slack of all primitives."""
    by_name = {primitive.name: primitive for primitive in request.primitives}
    chain: list[RecordedPrimitive] = []
    at = _last(request.primitives)
    while at is not None:
        chain.append(at)
        at = _last([by_name[name] for name in at.after if name in by_name])
    chain.reverse()
    parts: list[PathSegment] = []
    now = request.arrived_s
    for one in chain:
        parts.append(PathSegment("outside", now, one.ready_s))
        parts.append(PathSegment("queued", one.ready_s, one.started_s, one))
        parts.append(PathSegment("running", one.started_s, one.ended_s, one))
        now = one.ended_s
    parts.append(PathSegment("outside", now, request.ended_s))
    shown = tuple(part for part in parts if part.end_s > part.start_s)
    return CriticalPath(request, tuple(chain), shown, _slack(request, chain))


def stage_times(request: RecordedRequest) -> tuple[StageTimes, ...]:
    """Return where each stage's time went, in the order in which the stages started."""
    stages: dict[str, list[RecordedPrimitive]] = {}
    for primitive in request.primitives:
        stages.setdefault(primitive.stage, []).append(primitive)
    return tuple(
        StageTimes(
            stage,
            1000 * sum(one.ready_s - request.arrived_s for one in several),
            1000 * sum(one.queued_s for one in several),
            1000 * sum(one.running_s for one in several),
        )
        for stage, several in stages.items()
    )


def _slack(request: RecordedRequest, chain: list[RecordedPrimitive]) -> dict[str, float]:
    """Go back from the end: how late may each end, so that what follows still ends in time."""
    end_s = chain[-1].ended_s if chain else request.ended_s
    by_name = {primitive.name: primitive for primitive in request.primitives}
    latest = dict.fromkeys(by_name, end_s)
    # What a primitive waited for has ended, so it started earlier, or at once and stands before.
    for one in reversed(request.primitives):
        before = [by_name[name] for name in one.after if name in by_name]
        if before:
            spent_s = one.ended_s - max(other.ended_s for other in before)
            for other in before:
                latest[other.name] = min(latest[other.name], latest[one.name] - spent_s)
    on_path = {one.name for one in chain}
    return {
        name: 0.0 if name in on_path else max(0.0, latest[name] - one.ended_s)
        for name, one in by_name.items()
    }


def _last(
    primitives: tuple[RecordedPrimitive, ...] | list[RecordedPrimitive],
) -> RecordedPrimitive | None:
    """Return the primitive that ended last; of several, the one that started last."""
    return max(primitives, key=lambda one: (one.ended_s, one.started_s), default=None)

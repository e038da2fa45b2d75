"""The critical path of a request, and the slack of the primitives off it.

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
    for primitive in chain:
        parts.append(PathSegment("outside", now, primitive.ready_s))
        parts.append(PathSegment("queued", primitive.ready_s, primitive.started_s, primitive))
        parts.append(PathSegment("running", primitive.started_s, primitive.ended_s, primitive))
        now = primitive.ended_s
    parts.append(PathSegment("outside", now, request.ended_s))
    shown = tuple(part for part in parts if part.end_s > part.start_s)
    return CriticalPath(request, tuple(chain), shown, _slack(request, chain))


def _slack(request: RecordedRequest, chain: list[RecordedPrimitive]) -> dict[str, float]:
    """Return the slack of each primitive, computed backwards from the end."""
    end_s = chain[-1].ended_s if chain else request.ended_s
    by_name = {primitive.name: primitive for primitive in request.primitives}
    latest = dict.fromkeys(by_name, end_s)
    # What a primitive waited for has ended, so it started earlier, or at once and stands before.
    for primitive in reversed(request.primitives):
        before = [by_name[name] for name in primitive.after if name in by_name]
        if before:
            spent_s = primitive.ended_s - max(other.ended_s for other in before)
            for other in before:
                latest[other.name] = min(latest[other.name], latest[primitive.name] - spent_s)
    on_path = {primitive.name for primitive in chain}
    return {
        name: 0.0 if name in on_path else max(0.0, latest[name] - primitive.ended_s)
        for name, primitive in by_name.items()
    }


def _last(
    primitives: tuple[RecordedPrimitive, ...] | list[RecordedPrimitive],
) -> RecordedPrimitive | None:
    """Return the primitive that ended last; of several, the one that started last."""
    return max(
        primitives, key=lambda primitive: (primitive.ended_s, primitive.started_s), default=None
    )

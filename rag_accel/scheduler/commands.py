"""Commands: the decisions of the scheduler core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from rag_accel.scheduler.messages import (
    EngineName,
    Fallback,
    NodeKey,
    Outcome,
    RequestId,
    StepId,
    WorkSlice,
)


class _Matching:
    """A command of which a test can compare a few fields.

    ``StartStep.match(engine="e") == command`` compares one.
    """

    __slots__ = ()

    @classmethod
    def match(cls, **parts: Any) -> _Match:
        """Return an object equal to every instance whose named fields have these values."""
        return _Match(cls, parts)


class _Match:
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, cls: type, parts: dict[str, Any]) -> None:
        self.cls, self.parts = cls, parts

    def __eq__(self, other: object) -> bool:
        return type(other) is self.cls and all(
            getattr(other, name) == value for name, value in self.parts.items()
        )

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={value!r}" for name, value in self.parts.items())
        return f"{self.cls.__name__}.match({inner})"


@dataclass(frozen=True, slots=True)
class StartStep(_Matching):
    """An engine gets ``admitted`` and is stepped over everything it holds.

    Args:
        parts: for those of ``admitted`` that do not enter as a whole, what of them does.
        time_s: when the step should end at the latest, in seconds from its start.
        is_early: whether it is of early work, and of nothing else.
    """

    engine: EngineName
    step: StepId
    admitted: tuple[NodeKey, ...]
    threads: int
    time_s: float | None = None
    parts: tuple[WorkSlice, ...] = ()
    is_early: bool = False


@dataclass(frozen=True, slots=True)
class StartCall(_Matching):
    """The caller may run this node now."""

    node: NodeKey
    engine: EngineName


class TooLate(NamedTuple):
    """The least time from a node to its request's end, and the time that is left, in seconds."""

    takes_s: float
    left_s: float


@dataclass(frozen=True, slots=True)
class EndNode(_Matching):
    """A node's outcome is delivered to its client; ``leader`` holds the result if it was shared.

    One that was ``rejected`` for an engine that would be late may try again ``retry_after_s``
    later. One that was not begun because it could not end in time says why: ``late``.
    """

    node: NodeKey
    outcome: Outcome
    leader: NodeKey | None = None
    retry_after_s: float = 0.0
    late: TooLate | None = None


@dataclass(frozen=True, slots=True)
class EndEarly(_Matching):
    """Early work has ended, or was dropped."""

    node: NodeKey
    engine: EngineName
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class RetryNode(_Matching):
    """A primitive has failed and has its next attempt, number ``attempt``, in ``delay_s``."""

    node: NodeKey
    attempt: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class StartFallback(_Matching):
    """A primitive has failed for good; its stage's ``fallback`` runs in its place from now on."""

    node: NodeKey
    fallback: Fallback


@dataclass(frozen=True, slots=True)
class EndRequest(_Matching):
    """A whole request ends; ``node`` is the one that failed it, the rest as in ``EndNode``."""

    request: RequestId
    outcome: Outcome
    node: NodeKey | None = None
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CancelWork(_Matching):
    """An engine has to forget work it holds."""

    engine: EngineName
    nodes: tuple[NodeKey, ...]


@dataclass(frozen=True, slots=True)
class InterruptStep(_Matching):
    """A waiting step of this engine has to return: new work is there."""

    engine: EngineName


@dataclass(frozen=True, slots=True)
class DropEngine(_Matching):
    """The worker of an engine that has left stops; the engine's name means nothing any more."""

    engine: EngineName


@dataclass(frozen=True, slots=True)
class WakeAt(_Matching):
    """A ``Tick`` is due at this time, unless another event is handled at or after it.

    An earlier ``WakeAt`` stands until its time: asking for the same time again is left out.
    """

    at: float


Command = (
    StartStep
    | StartCall
    | EndNode
    | EndEarly
    | RetryNode
    | StartFallback
    | EndRequest
    | CancelWork
    | InterruptStep
    | DropEngine
    | WakeAt
)

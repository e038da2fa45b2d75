"""Define what a trace can say: one frozen dataclass per fact.

An event holds ids, numbers and words from fixed lists, never a prompt, a document, a vector or an
error's text, so a trace may leave the process without carrying anybody's data.

A request lives between ``RequestStarted`` and ``RequestEnded``. Each of its nodes goes through
``NodeReady`` (all it needs is there), ``NodeDispatched`` (its engine took it, or its caller got a
permit) and ``NodeFinished``; a node that shares an equal one's run has ``SingleFlightJoined`` in
place of ``NodeDispatched``. Owned engines add ``BatchFormed``, ``StepStarted`` and ``StepEnded``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, cast

RequestId = int | str
Member = tuple[RequestId, str]
"""One node of one request."""

Outcome = Literal["done", "failed", "cancelled", "deadline", "lost", "rejected", "closed"]
BypassReason = Literal["switched_off", "internal_error", "unsupported_call", "closed", "forked"]

JsonValue = str | int | float | bool | None | list["JsonValue"] | dict[str, "JsonValue"]


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """Be the root of all events; ``time_s`` is in monotonic seconds of the caller's clock."""

    time_s: float


@dataclass(frozen=True, slots=True)
class RequestStarted(TraceEvent):
    """A request was admitted."""

    request_id: RequestId


@dataclass(frozen=True, slots=True)
class RequestEnded(TraceEvent):
    """A request ended; ``node`` is the one whose failure ended it, if one did."""

    request_id: RequestId
    outcome: Outcome
    node: str | None = None


@dataclass(frozen=True, slots=True)
class NodeReady(TraceEvent):
    """A node could run now; ``depth`` is its longest remaining path, in nodes."""

    request_id: RequestId
    node: str
    engine: str
    depth: int = 1


@dataclass(frozen=True, slots=True)
class NodeDispatched(TraceEvent):
    """An engine took a node after it had been ready for ``waited_s`` seconds."""

    request_id: RequestId
    node: str
    engine: str
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FirstOutput(TraceEvent):
    """A streaming node produced its first output."""

    request_id: RequestId
    node: str
    engine: str


@dataclass(frozen=True, slots=True)
class NodeFinished(TraceEvent):
    """A node ended ``duration_s`` seconds after it had been dispatched."""

    request_id: RequestId
    node: str
    engine: str
    outcome: Outcome
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SingleFlightJoined(TraceEvent):
    """A node will get the result of ``leader``, an equal node that runs already."""

    request_id: RequestId
    node: str
    engine: str
    leader: Member


@dataclass(frozen=True, slots=True)
class LeafBypassed(TraceEvent):
    """A leaf ran plainly, past the scheduler; ``error`` is the class of our own error, if any."""

    request_id: RequestId | None
    node: str | None
    engine: str | None
    reason: BypassReason
    error: str | None = None


@dataclass(frozen=True, slots=True)
class BatchFormed(TraceEvent):
    """The scheduler chose who enters an engine's next step; ``items`` sums the members' sizes."""

    engine: str
    step: int
    members: tuple[Member, ...]
    items: int


@dataclass(frozen=True, slots=True)
class StepStarted(TraceEvent):
    """An engine began a step over ``members`` on ``threads`` threads."""

    engine: str
    step: int
    members: tuple[Member, ...]
    threads: int


@dataclass(frozen=True, slots=True)
class StepEnded(TraceEvent):
    """An engine's step came back after ``duration_s`` seconds; ``ok`` is false if it raised."""

    engine: str
    step: int
    members: tuple[Member, ...]
    threads: int
    duration_s: float
    ok: bool = True


@dataclass(frozen=True, slots=True)
class EngineLost(TraceEvent):
    """An engine did not come back from a step and takes no more work."""

    engine: str
    step: int


EVENT_TYPES: tuple[type[TraceEvent], ...] = (
    RequestStarted,
    RequestEnded,
    NodeReady,
    NodeDispatched,
    FirstOutput,
    NodeFinished,
    SingleFlightJoined,
    LeafBypassed,
    BatchFormed,
    StepStarted,
    StepEnded,
    EngineLost,
)


def to_record(event: TraceEvent) -> dict[str, JsonValue]:
    """Return the event as a JSON object: its class name under ``event``, then its fields."""
    record: dict[str, JsonValue] = {"event": type(event).__name__}
    for spec in fields(event):
        record[spec.name] = _to_json(getattr(event, spec.name))
    return record


def _to_json(value: object) -> JsonValue:
    if isinstance(value, tuple):
        return [_to_json(item) for item in cast("tuple[object, ...]", value)]
    if value is None or isinstance(value, (str, int, float)):
        return value
    return type(value).__name__

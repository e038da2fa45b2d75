"""Events of a trace: one frozen dataclass per fact.

An event holds ids, numbers and words from fixed lists, never a prompt, a document, a vector or an
error's text, so a trace may leave the process without carrying any user's data.

A request lives between ``RequestStarted`` and ``RequestEnded``. Each of its nodes goes through
``NodeDispatched`` (its engine took it or its first part, or its caller got a permit; it says since
when the node was ready) and ``NodeFinished``, with ``FirstOutput`` in between where it streams; a
node that failed has ``NodeRetried`` before it is dispatched again. A
node that shares an equal one's run has ``SingleFlightJoined`` in place of ``NodeDispatched``. A
generation on an owned engine that has ended has ``TokensUsed`` before its ``NodeFinished``. Owned
engines add ``StepStarted``, which names the step's members, and ``StepEnded``.
``EngineJoined`` holds for as long as its engine does, and is readable however much follows it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, cast

RequestId = int | str
Member = tuple[RequestId, str]
"""One node of one request."""

Outcome = Literal["done", "failed", "cancelled", "deadline", "lost", "rejected", "closed"]
Origin = Literal["graph", "program", "leaf"]
"""The form of a request: its primitives, a program that calls leaves, or one leaf."""

JsonValue = str | int | float | bool | None | list["JsonValue"] | dict[str, "JsonValue"]


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """The root of all events; ``time_s`` is in monotonic seconds of the caller's clock."""

    time_s: float


@dataclass(frozen=True, slots=True)
class EngineJoined(TraceEvent):
    """An engine can be used from now on.

    ``capacity`` is how many items enter a step of an owned engine, or how many calls a borrowed
    one takes at once; None is any number. A ``stepped`` engine keeps work from step to step.
    """

    engine: str
    owned: bool
    stepped: bool
    capacity: int | None


@dataclass(frozen=True, slots=True)
class RequestStarted(TraceEvent):
    """A request arrived; it may still have to wait until it is admitted."""

    request_id: RequestId
    origin: Origin = "graph"


@dataclass(frozen=True, slots=True)
class RequestEnded(TraceEvent):
    """A request ended; ``node`` is the one whose failure ended it, if one did.

    A program that has left is ``done`` however it left: its own errors are not told. One of a
    single leaf ends with that leaf and has no such event.
    """

    request_id: RequestId
    outcome: Outcome
    node: str | None = None


@dataclass(frozen=True, slots=True)
class NodeDispatched(TraceEvent):
    """An engine took a node after it had been ready for ``waited_s`` seconds.

    The event describes the node: its primitive ``kind``, the nodes of its request it had
    to come ``after`` (the condition that added it is one), its ``depth`` (longest remaining path,
    in nodes) and its ``size`` in items. A node whose step raised is taken again, and has then been
    ready all the time.
    """

    request_id: RequestId
    node: str
    engine: str
    waited_s: float = 0.0
    kind: str = ""
    after: tuple[str, ...] = ()
    depth: int = 1
    size: int = 1


@dataclass(frozen=True, slots=True)
class FirstOutput(TraceEvent):
    """A streaming node produced its first output."""

    request_id: RequestId
    node: str
    engine: str


@dataclass(frozen=True, slots=True)
class TokensUsed(TraceEvent):
    """A generation ended; its tokens, those of the prompt by where their state came from.

    ``computed``, ``from_prefix`` and ``from_chunks`` are together the whole prompt; for the others
    see ``PromptUse``.
    """

    request_id: RequestId
    node: str
    engine: str
    computed: int
    from_prefix: int = 0
    from_chunks: int = 0
    recomputed: int = 0
    preprocessed: int = 0
    approximate: int = 0
    completion_tokens: int = 0
    documents: int = 0
    tree: int = 0
    from_tree: int = 0


@dataclass(frozen=True, slots=True)
class NodeFinished(TraceEvent):
    """A node ended ``duration_s`` seconds after it had been dispatched.

    One that was never dispatched has an empty ``engine`` and no duration.
    """

    request_id: RequestId
    node: str
    engine: str
    outcome: Outcome
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeRetried(TraceEvent):
    """A node failed and has its further attempt number ``attempt`` in ``delay_s`` seconds."""

    request_id: RequestId
    node: str
    engine: str
    attempt: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class FallbackStarted(TraceEvent):
    """A node failed for good, and its stage's fallback runs: the nodes ``by``.

    The stage's last node ends with the last of these; its others have no end of their own.
    """

    request_id: RequestId
    node: str
    engine: str
    by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SingleFlightJoined(TraceEvent):
    """A node got the result of ``leader``, an equal node, after it had waited ``waited_s``."""

    request_id: RequestId
    node: str
    engine: str
    leader: Member
    waited_s: float = 0.0


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
    EngineJoined,
    RequestStarted,
    RequestEnded,
    NodeDispatched,
    FirstOutput,
    TokensUsed,
    NodeFinished,
    NodeRetried,
    FallbackStarted,
    SingleFlightJoined,
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

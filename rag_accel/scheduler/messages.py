"""Events: everything the scheduler core can be told. Its decisions are in ``commands.py``.

Both are frozen dataclasses of ids and numbers: no payload, no clock, no object of a framework ever
enters the core, so a table of events fully determines a table of commands.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal, NamedTuple, NewType

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.engine_api.payloads import TokenUsage

RequestId = NewType("RequestId", int)
EngineName = NewType("EngineName", str)
StepId = NewType("StepId", int)

Outcome = Literal["done", "failed", "cancelled", "deadline", "lost", "rejected", "closed"]
OnFull = Literal["wait", "raise"]


class NodeKey(NamedTuple):
    """The identity of one primitive of one live request."""

    request: RequestId
    node: str


@dataclass(frozen=True, slots=True)
class Stakes:
    """The stakes of a speculation (HedraRAG section 4.3).

    Args:
        chance: of the result that it is made of, to be final; 0 to 1.
        left_s: seconds until that is known.
    """

    chance: float
    left_s: float


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A primitive as the core sees it.

    Args:
        name: unique within its request; never used again while its engine may still hold it.
        engine: where it runs.
        kind: what it does.
        after: names of primitives of the same request that must end first.
        depth: longest remaining path to the request's end, in primitives (Teola Alg. 2).
        size: items it adds to a batch.
        share: equal keys on one engine at one time may share one run; ``None`` never does.
        backoffs_s: how long it waits before each further attempt, jitter included: as many
            attempts follow its first.
        fallback: what takes its place after its last attempt.
        early: nobody waits for it yet, but its request's program is likely to ask for it: a leaf
            that runs only while its request is alone (``early_answers.py``).
        provisional: its results so far are wanted, so that it may enter its engine in parts.
        stakes: nobody waits for it, but its graph will if a result that is not final yet turns out
            to be: a leaf that begins only where it is likely to save time (``speculation.py``).
    """

    name: str
    engine: EngineName
    kind: PrimitiveKind
    after: tuple[str, ...] = ()
    depth: int = 1
    size: int = 1
    share: Hashable | None = None
    backoffs_s: tuple[float, ...] = ()
    fallback: Fallback | None = None
    early: bool = False
    provisional: bool = False
    stakes: Stakes | None = None


@dataclass(frozen=True, slots=True)
class Fallback:
    """The primitives that take the place of a stage's own, of which one has failed.

    Args:
        last: the stage's last primitive, which stays: it ends with the last of ``specs``.
        others: the stage's other primitives, which are dropped.
        specs: what runs instead; names are new to the request.
    """

    last: str
    others: tuple[str, ...]
    specs: tuple[NodeSpec, ...]


class WorkSlice(NamedTuple):
    """The items ``start`` to ``stop`` (exclusive) of a primitive: one sub-stage."""

    node: NodeKey
    start: int
    stop: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class OwnedEngineAdded:
    """An engine that is stepped in its own worker has joined."""

    engine: EngineName
    max_batch: int
    max_threads: int = 1
    base_s: float = 0.0
    per_item_s: float = 0.0
    stepped: bool = False
    interruptible: bool = False
    ends_in_time: bool = False
    itemwise: bool = False
    bounds_its_work: bool = False
    shares_cores: bool = False


@dataclass(frozen=True, slots=True)
class EngineLeft:
    """An owned engine gets no new work any more, and leaves after its present work."""

    engine: EngineName


@dataclass(frozen=True, slots=True)
class BorrowedEngineAdded:
    """A user's object has joined; without ``max_concurrency`` no call is held back."""

    engine: EngineName
    max_concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A whole request with its first primitives; it ends when all of them have ended.

    ``retry_after_s``: over 0, an engine that it needs would be late, and a new one is refused.
    """

    request: RequestId
    nodes: tuple[NodeSpec, ...]
    arrived_at: float
    deadline: float | None = None
    on_full: OnFull = "wait"
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestOpened:
    """A program whose leaves will be intercepted has started.

    ``program`` names the accelerated object, so that what follows what can be learned from its
    earlier runs. ``last_call`` is its last call that has ended, if any, and when. With
    ``was_reported``, ``ProgramBegan`` has told of its start.
    """

    request: RequestId
    program: str
    arrived_at: float
    deadline: float | None = None
    last_call: tuple[EngineName, float] | None = None
    was_reported: bool = False


@dataclass(frozen=True, slots=True)
class LeafArrived:
    """One intercepted call. Its request is opened on the spot if it was not opened before.

    It waits for no other primitive. In a graph (a call inside opaque user code) it still ends by
    itself: its failure does not end the graph.
    ``retry_after_s`` is as in ``RequestArrived``. ``at_once`` says that its caller holds up an
    event loop, on which those may run that it would wait for: no bound keeps it out, save by
    refusing it.
    """

    request: RequestId
    node: NodeSpec
    arrived_at: float
    deadline: float | None = None
    on_full: OnFull = "wait"
    retry_after_s: float = 0.0
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class EarlyArrived:
    """Work of an owned engine that nobody waits for; its result is only looked up (``early.py``).

    Its request lives: early work ends with it. ``node`` is no primitive of the request.
    """

    node: NodeKey
    engine: EngineName


@dataclass(frozen=True, slots=True)
class EarlyAsked:
    """A program has made the call that an early leaf was begun for, and waits for it now."""

    node: NodeKey
    engine: EngineName


class CallMade(NamedTuple):
    """An intercepted call has begun and ended where its caller is, without asking for a permit.

    Its engine has no limit, so nothing had to be decided; it is told afterwards, to be learned from
    and counted.
    """

    request: RequestId
    name: str
    engine: EngineName
    kind: PrimitiveKind
    arrived_at: float
    began_at: float
    ended_at: float
    ok: bool


class ProgramBegan(NamedTuple):
    """A program has started that is not opened: it may need no decision at all.

    It is opened before its first leaf that waits or that an engine computes.
    """

    request: RequestId
    arrived_at: float


class ProgramEnded(NamedTuple):
    """A program has ended that was never opened."""

    request: RequestId
    closed_at: float


Fact = CallMade | ProgramBegan | ProgramEnded


class Reported(NamedTuple):
    """Events that happened where callers are, in order, and needed no decision.

    Tuples, because there may be many.
    """

    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class RequestClosed:
    """An opened program has ended; leaves still running are the caller's own business."""

    request: RequestId
    closed_at: float


@dataclass(frozen=True, slots=True)
class ProgramLeft:
    """An accelerated object is gone: its program will open no request any more."""

    program: str


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One member of a step ended, gave its first output, or had a part of it ended.

    After a ``part``, others of the same member are left. One that is ``taken`` goes on as the work
    of another member. ``used`` are the tokens of a generation
    that ended. ``retry_after_s`` is set by an error that another attempt may mend, which must not
    begin sooner.
    """

    node: NodeKey
    kind: Literal["final", "error", "partial", "part", "taken"]
    used: TokenUsage | None = None
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class StepEnded:
    """A step came back; ``counts`` are changes of what the engine counts, by name."""

    engine: EngineName
    step: StepId
    reports: tuple[NodeReport, ...]
    duration_s: float
    counts: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A step raised: nothing is known about its members but that they were in it.

    ``errors`` are of the members that another attempt may mend, as in ``NodeReport``.
    """

    engine: EngineName
    step: StepId
    duration_s: float
    errors: tuple[NodeReport, ...] = ()


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A borrowed call returned; ``append`` holds the primitives a taken branch adds to a graph.

    It must follow every ``StartCall``, even if the node has ended: it gives the permit back.
    ``retry_after_s`` is as in ``NodeReport``.
    """

    node: NodeKey
    engine: EngineName
    ok: bool
    append: tuple[NodeSpec, ...] = ()
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class NodeCancelled:
    """The caller of one leaf is gone."""

    node: NodeKey


@dataclass(frozen=True, slots=True)
class LoopHeldUp:
    """The caller of a leaf that waits holds up an event loop: as ``LeafArrived.at_once``, later."""

    node: NodeKey


@dataclass(frozen=True, slots=True)
class RequestCancelled:
    """The caller of a whole request is gone."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. Every event also does what is due, so a busy driver needs no tick."""


@dataclass(frozen=True, slots=True)
class Closing:
    """Everything that lives ends; nothing is accepted afterwards."""


Event = (
    OwnedEngineAdded
    | BorrowedEngineAdded
    | EngineLeft
    | RequestArrived
    | RequestOpened
    | LeafArrived
    | EarlyArrived
    | EarlyAsked
    | Reported
    | RequestClosed
    | ProgramLeft
    | StepEnded
    | StepFailed
    | CallEnded
    | NodeCancelled
    | LoopHeldUp
    | RequestCancelled
    | Tick
    | Closing
)

"""The state of the scheduler core: live requests, engines with their queues, and history."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.engine_api.transient import RetryBudget
from rag_accel.errors import InvalidTransitionError
from rag_accel.scheduler.learning import LeastTime, ReturnRateLearner, StepCosts
from rag_accel.scheduler.messages import EngineName, NodeKey, NodeSpec, RequestId, StepId
from rag_accel.scheduler.runs import (
    EarlyWorks,
    LeafPlace,
    NodeQueue,
    NodeRun,
    NodeState,
    RequestRun,
)

STORY_LENGTH = 2048
#: further attempts on an engine before any of its works has ended well
MOST_RETRIES = 64
MAX_PROGRAMS = 4096

Gaps = dict[EngineName | None, dict[EngineName, float]]


@dataclass(slots=True)
class LeafTimes:
    """The learned times from one leaf's begin to the end of its program's run."""

    #: mean seconds; 0 before the first
    rest_s: float = 0.0
    least: LeastTime = field(default_factory=LeastTime)


@dataclass(slots=True)
class ProgramTimes:
    """The times that earlier runs of a program have shown."""

    #: seconds between a leaf on one engine and the next on another
    gaps: Gaps = field(default_factory=Gaps)
    places: dict[LeafPlace, LeafTimes] = field(default_factory=dict[LeafPlace, LeafTimes])


@dataclass(slots=True)
class EngineState:
    """The state of one engine."""

    name: EngineName
    owned: bool
    max_batch: int = 1
    max_threads: int = 1
    stepped: bool = False
    interruptible: bool = False
    ends_in_time: bool = False
    itemwise: bool = False
    bounds_its_work: bool = False
    shares_cores: bool = False
    #: borrowed engines only; None is unbounded
    max_concurrency: int | None = None
    #: borrowed engines only: calls not started yet that cannot wait
    at_once: dict[NodeKey, None] = field(default_factory=dict[NodeKey, None])
    queue: NodeQueue = field(default_factory=NodeQueue)
    running: dict[NodeKey, NodeRun] = field(default_factory=dict[NodeKey, NodeRun])
    #: leaders of shared runs by share key
    flights: dict[Hashable, NodeKey] = field(default_factory=dict[Hashable, NodeKey])
    #: not None iff owned and inside a step
    step: StepId | None = None
    step_started: float = 0.0
    #: when it will be lost if it is inside a step still; not None iff it is and is not lost
    hangs_at: float | None = None
    threads: int = 0
    #: the size of the step
    step_items: int = 0
    returns: ReturnRateLearner = field(default_factory=ReturnRateLearner)
    costs: StepCosts = field(default_factory=StepCosts)
    early: EarlyWorks = field(default_factory=EarlyWorks)
    interrupted: bool = False
    lost: bool = False
    #: it gets no new work any more: it goes as soon as no live request wants it
    leaving: bool = False
    #: owned engines only: further attempts that may begin; each work that ends well allows another
    retries: RetryBudget = field(default_factory=lambda: RetryBudget(MOST_RETRIES))
    #: primitives of live and waiting requests that name it and have not ended
    wanted: int = 0
    base_s: float = 0.0
    per_item_s: float = 0.0
    #: running mean of a step in seconds; 0 before the first
    step_mean_s: float = 0.0
    #: running mean of a node's time on this engine in seconds; 0 before the first
    node_mean_s: float = 0.0
    least: dict[PrimitiveKind, LeastTime] = field(default_factory=dict[PrimitiveKind, LeastTime])
    #: not None iff the engine is idle on purpose, for a newcomer of the request ``wait_for``, or
    #: for callers that are about to come back
    wait_until: float | None = None
    wait_from: float = 0.0
    wait_for: RequestId | None = None

    @property
    def has_room(self) -> bool:
        """Tell whether a borrowed engine may run one more call."""
        return self.max_concurrency is None or len(self.running) < self.max_concurrency

    def renewed(self) -> EngineState:
        """Return the same engine without any work, and with nothing learned."""
        return EngineState(
            self.name,
            self.owned,
            max_batch=self.max_batch,
            max_threads=self.max_threads,
            stepped=self.stepped,
            interruptible=self.interruptible,
            ends_in_time=self.ends_in_time,
            itemwise=self.itemwise,
            bounds_its_work=self.bounds_its_work,
            shares_cores=self.shares_cores,
            max_concurrency=self.max_concurrency,
            leaving=self.leaving,
            base_s=self.base_s,
            per_item_s=self.per_item_s,
        )

    def predict_s(self, items: int) -> float:
        """Return the expected seconds of a step over ``items`` items."""
        return self.step_mean_s if self.step_mean_s > 0 else self.base_s + self.per_item_s * items


#: Waiting time that outweighs one level of depth, so that nothing starves.
AGEING_S = 0.5
#: Time budget of a step while others may be waiting, at the least and at the most.
SLICE_MIN_S, SLICE_MAX_S = 0.008, 0.25


@dataclass(frozen=True, slots=True)
class CoreOptions:
    """The core's options; all times in seconds."""

    max_requests: int = 4096
    max_batch: int = 64
    batch_wait_s: float = 0.003
    ageing_s: float = AGEING_S
    step_timeout_s: float = 120.0
    cores: int = 1
    #: bounds of a step's time budget, and whether nodes may enter in parts
    slice_min_s: float = SLICE_MIN_S
    slice_max_s: float = SLICE_MAX_S
    split_nodes: bool = True


@dataclass(frozen=True, slots=True)
class Transition:
    """One move of one node and the event that caused it."""

    event: int
    node: NodeKey
    before: NodeState | None
    after: NodeState
    why: str


@dataclass(slots=True)
class SchedulerState:
    """All state of the core; mutated by ``transitions.handle`` only."""

    options: CoreOptions = CoreOptions()
    requests: dict[RequestId, RequestRun] = field(default_factory=dict[RequestId, RequestRun])
    #: requests that wait for admission, oldest first
    pending: dict[RequestId, RequestRun] = field(default_factory=dict[RequestId, RequestRun])
    #: programs that have begun and are not opened; each has its place as a live request has
    begun: dict[RequestId, None] = field(default_factory=dict[RequestId, None])
    engines: dict[EngineName, EngineState] = field(default_factory=dict[EngineName, EngineState])
    #: those of ``engines`` that are stepped by us; few, while borrowed ones may be many
    owned: dict[EngineName, EngineState] = field(default_factory=dict[EngineName, EngineState])
    #: of each program, learned
    programs: dict[str, ProgramTimes] = field(default_factory=dict[str, ProgramTimes])
    #: open programs without a leaf by program and last engine, as (idle since, request), sorted
    idle: dict[tuple[str, EngineName | None], list[tuple[float, RequestId]]] = field(
        default_factory=dict[tuple[str, EngineName | None], list[tuple[float, RequestId]]]
    )
    #: running nodes that others wait for, by engine, as (running since, node), sorted
    feeding: dict[EngineName, list[tuple[float, NodeKey]]] = field(
        default_factory=dict[EngineName, list[tuple[float, NodeKey]]]
    )
    #: engines whose queue or slots changed during this event
    dirty: dict[EngineName, None] = field(default_factory=dict[EngineName, None])
    #: engines that have early work
    early: dict[EngineName, None] = field(default_factory=dict[EngineName, None])
    #: early leaves that no caller waits for (``early_answers.py``)
    unasked: dict[NodeKey, None] = field(default_factory=dict[NodeKey, None])
    deadlines: list[tuple[float, RequestId]] = field(default_factory=list[tuple[float, RequestId]])
    #: when nodes can no longer end in time unless they have begun, as (at, node), a heap
    latest_starts: list[tuple[float, NodeKey]] = field(default_factory=list[tuple[float, NodeKey]])
    #: when nodes have their next attempt, as (at, node), a heap; those that ended may be among them
    retries: list[tuple[float, NodeKey]] = field(default_factory=list[tuple[float, NodeKey]])
    log: deque[Transition] = field(default_factory=lambda: deque[Transition](maxlen=STORY_LENGTH))
    #: when more than one request lived last
    company_at: float = -math.inf
    events: int = 0
    steps: int = 0
    wake_at: float | None = None
    closed: bool = False

    def renewed(self, running: Mapping[NodeKey, EngineName]) -> SchedulerState:
        """Return a state in which nothing lives, with the same engines and nothing learned.

        Step ids go on, so that a step of this state is never taken for one of the new.

        Args:
            running: borrowed calls that still run; they hold their permits until they end.
        """
        fresh = SchedulerState(
            self.options, events=self.events, steps=self.steps, closed=self.closed
        )
        fresh.engines = {name: engine.renewed() for name, engine in self.engines.items()}
        fresh.owned = {name: engine for name, engine in fresh.engines.items() if engine.owned}
        fresh.dirty = dict.fromkeys(fresh.engines)
        for key, name in running.items():
            spec = NodeSpec(key.node, name, PrimitiveKind.FUNCTION)
            call = NodeRun(key, spec, arrived_at=0.0, state="ended", abandoned=True)
            fresh.engine(name).running[key] = call
        return fresh

    def move(self, node: NodeRun, state: NodeState, why: str) -> None:
        """Change a node's state and log it.

        Raises:
            InvalidTransitionError: if the node has already ended; shows its story.
        """
        if node.state == "ended":
            raise InvalidTransitionError(
                "a primitive moved after it had ended",
                where=f"{node.key.request}/{node.key.node}",
                found=f"ended -> {state} ({why})",
                hint="report this with the story below\n" + self.story(node.key),
            )
        self.log.append(Transition(self.events, node.key, node.state, state, why))
        node.state = state
        if state == "ended":
            self.unasked.pop(node.key, None)
            self.unwant(node)

    def unwant(self, node: NodeRun) -> None:
        """Note that a primitive will not need its engine any more."""
        engine = self.engines[node.spec.engine]
        engine.wanted -= 1
        if engine.leaving:
            self.dirty[engine.name] = None

    def story(self, key: NodeKey) -> str:
        """Return the logged moves of one node, one a line."""
        return "\n".join(
            f"  event {t.event}: {t.before} -> {t.after} ({t.why})"
            for t in self.log
            if t.node == key
        )

    def times_of(self, program: str) -> ProgramTimes:
        """Return the times of a program, for which that of the oldest is forgotten if need be."""
        if program not in self.programs and len(self.programs) >= MAX_PROGRAMS:
            del self.programs[next(iter(self.programs))]
        return self.programs.setdefault(program, ProgramTimes())

    def add_deadline(self, run: RequestRun) -> None:
        """Remember a request's deadline; forget those of requests long gone."""
        if run.deadline is None:
            return
        if len(self.deadlines) > 64 and len(self.deadlines) > 2 * self.live:
            self.deadlines = [(at, rid) for at, rid in self.deadlines if self.find(rid)]
            heapq.heapify(self.deadlines)
        heapq.heappush(self.deadlines, (run.deadline, run.id))

    def find_node(self, key: NodeKey) -> NodeRun | None:
        """Return a primitive of a live or pending request."""
        run = self.find(key.request)
        return run.nodes.get(key.node) if run is not None else None

    def find(self, request: RequestId) -> RequestRun | None:
        """Return a live or pending request."""
        return self.requests.get(request) or self.pending.get(request)

    def engine(self, name: EngineName) -> EngineState:
        """Return an engine that has joined.

        Raises:
            InvalidTransitionError: if it has not.
        """
        engine = self.engines.get(name)
        if engine is None:
            raise InvalidTransitionError(
                "an event names an engine that has not joined",
                found=name,
                valid=", ".join(self.engines) or "no engine has joined",
            )
        return engine

    def forget(self, request: RequestId) -> None:
        """Remove a request that has ended."""
        self.requests.pop(request, None)
        self.pending.pop(request, None)

    @property
    def has_room(self) -> bool:
        """Tell whether one more request may be admitted."""
        return len(self.requests) + len(self.begun) < self.options.max_requests

    @property
    def live(self) -> int:
        """Return how many requests live or wait for admission."""
        return len(self.requests) + len(self.pending)

    def is_empty(self) -> bool:
        """Tell whether nothing lives: no request, no queue, no running node, no flight."""
        busy = any(len(e.queue) or e.running or e.flights for e in self.engines.values())
        kept = self.requests or self.pending or self.idle or self.feeding or self.early
        kept = kept or self.unasked
        return not (kept or busy)

"""Hold the core to what it promised: a driver without threads, with a model of its own.

``CoreModel.send`` gives the core an event, carries out its commands and checks them against what
was brought, started and reported. ``core_player`` decides what happens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from core_invariants import validate

from rag_accel.scheduler.commands import (
    CancelWork,
    Command,
    EndEarly,
    EndNode,
    EndRequest,
    InterruptStep,
    RetryNode,
    StartCall,
    StartFallback,
    StartStep,
    WakeAt,
)
from rag_accel.scheduler.early import PIECE_S
from rag_accel.scheduler.learning import COMPANY_S
from rag_accel.scheduler.messages import (
    BorrowedEngineAdded,
    EngineName,
    Event,
    NodeKey,
    NodeSpec,
    Outcome,
    OwnedEngineAdded,
    RequestId,
    StepId,
    WorkSlice,
)
from rag_accel.scheduler.state import STORY_LENGTH, CoreOptions, SchedulerState
from rag_accel.scheduler.transitions import handle

STEP_TIMEOUT_S = 10.0
ENGINES: tuple[OwnedEngineAdded | BorrowedEngineAdded, ...] = (
    OwnedEngineAdded(
        EngineName("embed"), max_batch=6, max_threads=4, base_s=0.05, shares_cores=True
    ),
    OwnedEngineAdded(EngineName("search"), max_batch=3, max_threads=2, per_item_s=0.01),
    OwnedEngineAdded(
        EngineName("llm"),
        max_batch=4,
        max_threads=0,
        stepped=True,
        interruptible=True,
        bounds_its_work=True,
    ),
    OwnedEngineAdded(EngineName("upload"), max_batch=4, per_item_s=0.01, itemwise=True),
    OwnedEngineAdded(EngineName("rank"), max_batch=6, stepped=True, itemwise=True),
    OwnedEngineAdded(EngineName("scan"), max_batch=6, stepped=True, ends_in_time=True),
    BorrowedEngineAdded(EngineName("tool"), max_concurrency=2),
    BorrowedEngineAdded(EngineName("chat")),
)


@dataclass
class PlayedEngine:
    """Model one engine: what it holds, and what the core promised about it."""

    event: OwnedEngineAdded | BorrowedEngineAdded
    step: StepId | None = None
    started: float = 0.0
    held: dict[NodeKey, None] = field(default_factory=dict)
    calls: dict[NodeKey, None] = field(default_factory=dict)
    interrupted: bool = False
    #: of held nodes that did not enter as a whole, what did
    parts: dict[NodeKey, WorkSlice] = field(default_factory=dict)

    @property
    def stepped(self) -> bool:
        return isinstance(self.event, OwnedEngineAdded) and self.event.stepped


class CoreModel:
    """Drive the core; every ``validate_every`` events its whole state is checked.

    ``together`` events are taken in before anything is started for them.
    """

    def __init__(self, validate_every: int = 1, together: int = 1, **options: float) -> None:
        bounds = {"max_requests": 12, "step_timeout_s": STEP_TIMEOUT_S, "cores": 4, **options}
        self.state = SchedulerState(CoreOptions(**bounds))  # type: ignore[arg-type]
        self.now = 0.0
        self.validate_every = validate_every
        self.together = together
        self.events = 0
        self.record: list[Command] | None = None
        self.engines: dict[EngineName, PlayedEngine] = {}
        self.ids = 0
        #: every node that was ever brought, and how it ended
        self.specs: dict[NodeKey, NodeSpec] = {}
        self.ended: dict[NodeKey, Outcome] = {}
        self.graphs: dict[RequestId, Outcome | None] = {}
        self.leaves: dict[NodeKey, None] = {}
        #: those that no bound keeps waiting
        self.at_once: set[NodeKey] = set()
        self.programs: dict[RequestId, None] = {}
        #: early work that was brought and has not ended
        self.early: dict[NodeKey, None] = {}
        self.started: dict[NodeKey, None] = {}
        self.streamed: dict[NodeKey, None] = {}
        #: retried after a step that raised
        self.solo: dict[NodeKey, None] = {}
        #: further attempts of nodes, and those that end with a fallback
        self.attempts: dict[NodeKey, int] = {}
        self.replaced: dict[NodeKey, None] = {}
        #: the reported end of each node in the event at hand
        self.reported: dict[NodeKey, Outcome] = {}
        self.counts: dict[str, int] = {}
        self.peak = 0
        #: of each node, how many items have ended in parts; gone once nobody holds their results
        self.taken: dict[NodeKey, int] = {}
        #: when more than one request lived last
        self.company_at = 0.0
        for event in ENGINES:
            self.engines[event.engine] = PlayedEngine(event)
            self.send(event)

    def send(self, event: Event) -> None:
        """Send one event, carry out the commands, and check what must hold between events."""
        self.events += 1
        before = len(self.state.requests)
        more = self.events % self.together != 0
        commands = handle(self.state, event, self.now, more=more)
        if self.record is not None:
            self.record += commands
        if max(before, len(self.state.requests)) > 1:
            self.company_at = self.now
        for command in commands:
            self.counts[type(command).__name__] = self.counts.get(type(command).__name__, 0) + 1
            self._carry_out(command, commands)
        self._check_order(commands)
        for node, outcome in self.reported.items():
            if node.node.startswith("early"):
                assert node not in self.early, f"{node} was lost"
                continue
            # What comes late of a lost engine is not wanted where the fallback runs.
            known = node in self.ended or node in self.replaced
            assert known or self._is_over(node.request), f"{node}: {outcome} was lost"
        self.reported.clear()
        if self.events % self.validate_every == 0 and not more:
            validate(self.state, event)
            self._check_bounds()

    def _carry_out(self, command: Command, commands: list[Command]) -> None:
        if isinstance(command, StartStep):
            self._start_step(command)
        elif isinstance(command, StartCall):
            self._start_call(command)
        elif isinstance(command, EndNode):
            self._end_node(command, commands)
        elif isinstance(command, EndEarly):
            del self.early[command.node]  # once, and only if it was brought
        elif isinstance(command, RetryNode):
            self._retry(command)
        elif isinstance(command, StartFallback):
            self._fall_back(command)
        elif isinstance(command, EndRequest):
            assert self.graphs[command.request] is None, f"{command} ended before"
            self.graphs[command.request] = command.outcome
        elif isinstance(command, CancelWork):
            engine = self.engines[command.engine]
            for node in command.nodes:
                assert engine.stepped or node in self.taken
                # A step that raised has made the engine forget all it held.
                engine.held.pop(node, None)
                engine.parts.pop(node, None)
                self.taken.pop(node, None)
        elif isinstance(command, InterruptStep):
            engine = self.engines[command.engine]
            assert engine.step is not None
            assert not engine.interrupted
            engine.interrupted = True
        else:
            assert isinstance(command, WakeAt)

    def _retry(self, command: RetryNode) -> None:
        """A node that failed has another attempt, within its number and its deadline."""
        node = command.node
        self._check_alive(node)
        assert self.reported.pop(node) == "failed"
        assert node not in self.streamed
        backoffs_s = self.specs[node].backoffs_s
        assert command.attempt == self.attempts.get(node, 0) + 1 <= len(backoffs_s)
        assert command.delay_s >= backoffs_s[command.attempt - 1]
        self.attempts[node] = command.attempt
        self.solo.pop(node, None)

    def _fall_back(self, command: StartFallback) -> None:
        """A node that failed for good, or was lost, lets others run in its stage's place."""
        node, fallback = command.node, command.fallback
        self._check_alive(node)
        assert node not in self.streamed
        assert self.specs[node].fallback == fallback
        self.reported.pop(node, None)
        self.replaced[NodeKey(node.request, fallback.last)] = None
        for name in fallback.others:
            self.ended.setdefault(NodeKey(node.request, name), "cancelled")
        for new in fallback.specs:
            self.specs[NodeKey(node.request, new.name)] = new

    def _check_order(self, commands: list[Command]) -> None:
        """What has to end ends before anything starts, and what was started still runs."""
        kinds = [type(command) for command in commands]
        starts = [index for index, kind in enumerate(kinds) if kind in (StartStep, StartCall)]
        ends = [index for index, kind in enumerate(kinds) if kind in (EndNode, EndRequest)]
        assert not starts or not ends or max(ends) < min(starts)
        for command in commands:
            if isinstance(command, StartStep) and not command.is_early:
                assert set(command.admitted) <= set(self.state.engines[command.engine].running)

    def _start_step(self, command: StartStep) -> None:
        engine = self.engines[command.engine]
        assert isinstance(engine.event, OwnedEngineAdded)
        assert engine.step is None, f"{command}: the engine is busy"
        if command.is_early:
            self._start_early(engine, command)
            return
        for node in command.admitted:
            self._check_alive(node)
            assert node not in engine.held
            again = node in self.streamed and node not in self.taken
            assert not again, f"{node} streamed and is retried"
            engine.held[node] = self.started[node] = None
        for part in command.parts:
            self._check_part(engine, part)
        for node in command.admitted:
            assert node in engine.parts or node not in self.taken, f"{node} is run again"
        assert engine.held, "a step over nothing"
        sizes = [
            part.stop - part.start if (part := engine.parts.get(node)) else self.specs[node].size
            for node in engine.held
        ]
        assert sum(sizes) <= engine.event.max_batch or len(sizes) == 1
        self._check_budget(engine, command)
        assert len(sizes) == 1 or not any(node in self.solo for node in engine.held)
        assert command.threads >= 1
        engine.step, engine.started, engine.interrupted = command.step, self.now, False

    def _start_early(self, engine: PlayedEngine, command: StartStep) -> None:
        """Early work starts where nothing else waits, of an engine or of its cores."""
        owned = [self.state.owned[command.engine]]
        if owned[0].max_threads > 0:
            owned = [other for other in self.state.owned.values() if other.max_threads > 0]
        assert not any(len(other.queue) for other in owned)
        assert [other.name for other in owned if other.step is not None] == [command.engine]
        assert set(command.admitted) <= self.early.keys()
        assert not engine.held.keys() - self.early.keys()
        engine.held.update(dict.fromkeys(command.admitted))
        assert engine.held, "a step over nothing"
        assert not owned[0].ends_in_time or command.time_s == PIECE_S
        engine.step, engine.started, engine.interrupted = command.step, self.now, False

    def _check_part(self, engine: PlayedEngine, part: WorkSlice) -> None:
        """Parts follow each other without gap or overlap, on engines that can take them."""
        size = self.specs[part.node].size
        assert isinstance(engine.event, OwnedEngineAdded)
        assert engine.event.itemwise
        assert part.start == self.taken.get(part.node, 0)
        assert part.start < part.stop <= size
        assert part.is_last == (part.stop == size)
        assert part.stop - part.start <= engine.event.max_batch
        assert not engine.parts, "two nodes are cut in one step"
        engine.parts[part.node] = part

    def _check_budget(self, engine: PlayedEngine, command: StartStep) -> None:
        assert isinstance(engine.event, OwnedEngineAdded)
        options = self.state.options
        if engine.event.bounds_its_work:
            assert command.time_s == options.step_timeout_s / 2
            return
        if command.time_s is None:
            assert not engine.event.ends_in_time
            return
        assert engine.event.ends_in_time
        if command.time_s == options.step_timeout_s / 4:
            assert len(self.state.requests) < 2 or command.time_s <= options.slice_max_s
            return
        assert self.now - self.company_at <= COMPANY_S, "a lone request is cut"
        assert options.slice_min_s <= command.time_s <= options.slice_max_s

    def _start_call(self, command: StartCall) -> None:
        engine = self.engines[command.engine]
        assert isinstance(engine.event, BorrowedEngineAdded)
        self._check_alive(command.node)
        assert command.node not in engine.calls
        engine.calls[command.node] = self.started[command.node] = None
        limit = engine.event.max_concurrency
        within = len(engine.calls) - len(self.at_once & engine.calls.keys())
        assert limit is None or within <= limit

    def _end_node(self, command: EndNode, commands: list[Command]) -> None:
        node = command.node
        self._check_alive(node)
        self.ended[node] = command.outcome
        if command.late is not None:
            assert command.outcome == "deadline"
            assert node not in self.started or node in self.attempts, f"{node} had begun"
            assert command.late.takes_s + 1e-9 >= command.late.left_s >= 0
            self.counts["late"] = self.counts.get("late", 0) + 1
        if command.leader is not None:
            assert command.outcome == "done"
            mine, theirs = self.specs[node], self.specs[command.leader]
            assert (mine.share, mine.engine) == (theirs.share, theirs.engine)
            assert mine.share is not None
            assert self.reported[command.leader] == "done"
            assert EndNode(command.leader, "done") in commands
        elif node in self.replaced and command.outcome == "done":
            own = self.specs[node].fallback
            assert own is not None
            assert self.ended[NodeKey(node.request, own.specs[-1].name)] == "done"
        elif command.outcome in ("done", "failed"):
            assert self.reported[node] == command.outcome, f"{command} was never reported"
        elif command.outcome == "rejected":
            assert node not in self.started, f"{node} was admitted and is refused"
        else:
            assert command.outcome != "closed" or self.state.closed

    def _check_alive(self, node: NodeKey) -> None:
        assert node in self.specs, f"{node} never arrived"
        assert node not in self.ended, f"{node} has ended"
        assert node in self.leaves or self.graphs[node.request] is None, f"{node} is over"

    def _is_over(self, request: RequestId) -> bool:
        return self.graphs.get(request) is not None

    def _check_bounds(self) -> None:
        assert len(self.state.log) <= STORY_LENGTH
        self.peak = max(self.peak, self.state.live)
        assert len(self.state.deadlines) <= 65 + 2 * self.peak
        for engine in self.state.owned.values():
            if engine.wait_until is not None and len(engine.queue):
                longest = min(
                    self.state.options.batch_wait_s, 0.05 * engine.predict_s(engine.queue.items)
                )
                assert engine.wait_until <= engine.wait_from + longest + 1e-9
                # Who waits for a request waits for another one; who does not, for callers.
                assert engine.wait_for is None or len(self.state.requests) > 1

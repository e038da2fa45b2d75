"""Play engines and callers against the core, and hold it to what it promised.

``Player`` has one method per thing that can happen; each takes a ``Random`` for its choices, sends
the events a driver would send, carries out the commands and checks them against a model of its
own. Run as a script, it prints the commands of one seeded run.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from random import Random

from core_harness import key, spec

from rag_accel.scheduler.budget import COMPANY_S
from rag_accel.scheduler.commands import (
    CancelWork,
    Command,
    EndNode,
    EndRequest,
    InterruptStep,
    StartCall,
    StartStep,
    WakeAt,
)
from rag_accel.scheduler.invariants import validate
from rag_accel.scheduler.messages import (
    BorrowedEngineAdded,
    CallEnded,
    Closing,
    EngineName,
    Event,
    LeafArrived,
    NodeCancelled,
    NodeKey,
    NodeReport,
    NodeSpec,
    Outcome,
    OwnedEngineAdded,
    Part,
    RequestArrived,
    RequestCancelled,
    RequestClosed,
    RequestId,
    RequestOpened,
    StepEnded,
    StepFailed,
    StepId,
    Tick,
)
from rag_accel.scheduler.state import STORY_LENGTH, CoreOptions, SchedulerState
from rag_accel.scheduler.transitions import handle

HANG_S = 10.0
ENGINES: tuple[OwnedEngineAdded | BorrowedEngineAdded, ...] = (
    OwnedEngineAdded(EngineName("embed"), max_batch=6, max_threads=4, base_s=0.05),
    OwnedEngineAdded(EngineName("search"), max_batch=3, max_threads=2, per_item_s=0.01),
    OwnedEngineAdded(
        EngineName("llm"), max_batch=4, max_threads=0, stepped=True, interruptible=True
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
    parts: dict[NodeKey, Part] = field(default_factory=dict)

    @property
    def stepped(self) -> bool:
        return isinstance(self.event, OwnedEngineAdded) and self.event.stepped


class Player:
    """Play at random; ``validate_every`` events the whole state is checked.

    ``together`` events are taken in before anything is started for them.
    """

    def __init__(self, validate_every: int = 1, together: int = 1, **options: float) -> None:
        bounds = {"max_requests": 12, "hang_s": HANG_S, "cores": 4, **options}
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
        self.programs: dict[RequestId, None] = {}
        self.started: dict[NodeKey, None] = {}
        self.streamed: dict[NodeKey, None] = {}
        #: retried after a step that raised
        self.solo: dict[NodeKey, None] = {}
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

    # What can happen ------------------------------------------------------------------------

    def let_time_pass(self, rng: Random) -> None:
        """Move the clock; like a driver, look at it when the core asked for that."""
        until = self.now + rng.choice((0.0005, 0.002, 0.01, 0.1, 0.7))
        wake = self.state.wake_at
        if wake is not None and wake <= until and rng.random() < 0.8:
            self.now = max(self.now, wake)
            self.send(Tick())
        else:
            self.now = until

    def tick_early(self, rng: Random) -> None:
        """Look at the clock although nothing is due."""
        self.send(Tick())

    def open_program(self, rng: Random) -> None:
        """Start a program whose calls will be intercepted."""
        request = self._new_request()
        if not self.state.closed:
            self.programs[request] = None
        self.send(RequestOpened(request, rng.choice("pq"), self.now, self._deadline(rng)))

    def bring_leaf(self, rng: Random) -> None:
        """Let a program, a lone caller, or a function inside a graph make a call."""
        graphs = [request for request, end in self.graphs.items() if end is None][-5:]
        known = [*self.programs, *graphs]
        inside = known and rng.random() < 0.8
        request = rng.choice(known) if inside else self._new_request()
        node = self._spec(rng, f"leaf{self.ids}")
        self.ids += 1
        deadline = None if inside else self._deadline(rng)
        name = NodeKey(request, node.name)
        self.specs[name] = node
        self.leaves[name] = None
        on_full = "raise" if rng.random() < 0.2 else "wait"
        late = deadline is not None and deadline <= self.now
        free = (
            node.engine == "chat"
            and node.share is None
            and 2 * self.state.live < self.state.options.max_requests
        )
        begun = free and not late and not self.state.closed and rng.random() < 0.5
        self.send(LeafArrived(request, node, self.now, deadline, on_full, begun))

    def bring_graph(self, rng: Random) -> None:
        """Let a whole request arrive."""
        request = self._new_request()
        names = [f"n{index}" for index in range(rng.randint(1, 6))]
        nodes = [
            self._spec(rng, name, *rng.sample(names[:index], rng.randint(0, min(index, 2))))
            for index, name in enumerate(names)
        ]
        rng.shuffle(nodes)
        self.specs.update((NodeKey(request, node.name), node) for node in nodes)
        self.graphs[request] = None
        on_full = "raise" if rng.random() < 0.2 else "wait"
        deadline = self._deadline(rng)
        self.send(RequestArrived(request, tuple(nodes), self.now, deadline, on_full))

    def end_step(self, rng: Random, faults: bool = True) -> None:
        """Let a step come back, with any mix of reports an engine may make."""
        engine = self._stepping(rng)
        if engine is None:
            return
        reports: list[NodeReport] = []
        for node in list(engine.held):
            kinds = ["final", "final", "error", "silent"] if faults else ["final"]
            if faults and engine.stepped:
                kinds += ["partial", "partial", "silent"]
            kind = rng.choice(kinds)
            if kind in ("final", "error", "partial"):
                reports.append(NodeReport(node, kind))  # type: ignore[arg-type]
            if kind == "partial":
                self.streamed[node] = None
            elif kind != "silent" or not engine.stepped:
                del engine.held[node]
                part = engine.parts.pop(node, None)
                if kind == "final" and part is not None and not part.is_last:
                    self.taken[node] = part.stop
                    self.solo.pop(node, None)
                    reports[-1] = NodeReport(node, "part")
                    continue
                self.taken.pop(node, None)
                self.reported[node] = "done" if kind == "final" else "failed"
        rng.shuffle(reports)
        if rng.random() < 0.1 and reports and reports[0].kind != "part":
            reports.append(reports[0])
        self._leave(engine, StepEnded, tuple(reports))

    def fail_step(self, rng: Random) -> None:
        """Let a step raise."""
        engine = self._stepping(rng)
        if engine is None:
            return
        for node in engine.held:
            if len(engine.held) == 1 or node in self.streamed:
                self.reported[node] = "failed"
            else:
                self.solo[node] = None
        engine.held.clear()
        engine.parts.clear()
        self._leave(engine, StepFailed)

    def end_call(self, rng: Random, faults: bool = True) -> None:
        """Let a borrowed call return; it may take a branch that adds primitives."""
        calls = [(name, node) for name, e in self.engines.items() for node in e.calls]
        if not calls:
            return
        name, node = rng.choice(calls)
        del self.engines[name].calls[node]
        ok = not faults or rng.random() < 0.8
        self.reported[node] = "done" if ok else "failed"
        append = self._growth(rng, node) if faults and ok else ()
        self.send(CallEnded(node, name, ok, append))

    def cancel_node(self, rng: Random) -> None:
        """Let the caller of a leaf, or of one node of a graph, go away."""
        recent = list(self.specs)[-40:]
        if recent:
            self.send(NodeCancelled(rng.choice(recent)))

    def cancel_all(self) -> None:
        """Let every caller go away, one by one."""
        for node in list(self.specs):
            self.send(NodeCancelled(node))

    def cancel_request(self, rng: Random) -> None:
        """Let the caller of a request go away."""
        requests = list(dict.fromkeys(node.request for node in list(self.specs)[-40:]))
        requests += list(self.programs)
        if requests:
            self.send(RequestCancelled(rng.choice(requests)))

    def close_program(self, rng: Random) -> None:
        """Let a program end."""
        if self.programs:
            request = rng.choice(list(self.programs))
            del self.programs[request]
            self.send(RequestClosed(request))

    def hang(self, rng: Random) -> None:
        """Let so much time pass that running steps hang."""
        self.now += HANG_S
        self.send(Tick())

    def close(self, rng: Random) -> None:
        """Close the scheduler."""
        self.send(Closing())
        assert not self.state.requests
        assert not self.state.pending

    # What a driver does ----------------------------------------------------------------------

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
            assert node in self.ended or self._is_over(node.request), f"{node}: {outcome} was lost"
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

    def _check_order(self, commands: list[Command]) -> None:
        """What has to end ends before anything starts, and what was started still runs."""
        kinds = [type(command) for command in commands]
        starts = [index for index, kind in enumerate(kinds) if kind in (StartStep, StartCall)]
        ends = [index for index, kind in enumerate(kinds) if kind in (EndNode, EndRequest)]
        assert not starts or not ends or max(ends) < min(starts)
        for command in commands:
            if isinstance(command, StartStep):
                assert set(command.admitted) <= set(self.state.engines[command.engine].running)

    def _start_step(self, command: StartStep) -> None:
        engine = self.engines[command.engine]
        assert isinstance(engine.event, OwnedEngineAdded)
        assert engine.step is None, f"{command}: the engine is busy"
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

    def _check_part(self, engine: PlayedEngine, part: Part) -> None:
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
        if command.time_s is None:
            assert not engine.event.ends_in_time or len(self.state.requests) < 2
            return
        assert engine.event.ends_in_time
        assert self.now - self.company_at <= COMPANY_S, "a lone request is cut"
        assert options.slice_min_s <= command.time_s <= options.slice_max_s

    def _start_call(self, command: StartCall) -> None:
        engine = self.engines[command.engine]
        assert isinstance(engine.event, BorrowedEngineAdded)
        self._check_alive(command.node)
        assert command.node not in engine.calls
        engine.calls[command.node] = self.started[command.node] = None
        limit = engine.event.max_concurrency
        assert limit is None or len(engine.calls) <= limit

    def _end_node(self, command: EndNode, commands: list[Command]) -> None:
        node = command.node
        self._check_alive(node)
        self.ended[node] = command.outcome
        if command.leader is not None:
            assert command.outcome == "done"
            mine, theirs = self.specs[node], self.specs[command.leader]
            assert (mine.share, mine.engine) == (theirs.share, theirs.engine)
            assert mine.share is not None
            assert self.reported[command.leader] == "done"
            assert EndNode(command.leader, "done") in commands
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

    # How it ends ------------------------------------------------------------------------------

    def drain(self, rng: Random) -> None:
        """Let everything that runs come back well, and check that nothing is left or was lost."""
        self.together = 1
        self.send(Tick())
        while self.programs:
            self.close_program(rng)
        while any(engine.step or engine.calls for engine in self.engines.values()) or (
            self.state.requests and self.state.wake_at is not None
        ):
            self.end_step(rng, faults=False)
            self.end_call(rng, faults=False)
            if self.state.wake_at is not None and not any(e.step for e in self.engines.values()):
                self.now = max(self.now, self.state.wake_at)
                self.send(Tick())
        validate(self.state)
        assert self.state.is_empty()
        assert not self.taken, "results of parts are kept for nobody"
        unfinished = [node for node in self.leaves if node not in self.ended]
        assert not unfinished, f"never ended: {unfinished[:5]}"
        assert None not in self.graphs.values()
        for node in self.specs:
            if self.graphs.get(node.request) == "done":
                assert self.ended[node] in ("done", "failed", "cancelled") or node in self.leaves

    # Choices ----------------------------------------------------------------------------------

    def _new_request(self) -> RequestId:
        self.ids += 1
        return RequestId(self.ids)

    def _deadline(self, rng: Random) -> float | None:
        return self.now + rng.choice((0.0, 0.05, 1.0, 30.0)) if rng.random() < 0.3 else None

    def _spec(self, rng: Random, name: str, *after: str) -> NodeSpec:
        return spec(
            name,
            rng.choice(list(self.engines)),
            *after,
            depth=rng.randint(1, 4),
            size=rng.choice((1, 1, 1, 2, 3, 9)),
            share=rng.choice((None, None, "k", "l", "m")),
        )

    def _growth(self, rng: Random, node: NodeKey) -> tuple[NodeSpec, ...]:
        if rng.random() < 0.6 or self.graphs.get(node.request, "leaf") is not None:
            return ()
        if node in self.ended:
            return ()
        first = self._spec(rng, f"grown{self.ids}", node.node)
        second = self._spec(rng, f"grown{self.ids + 1}", first.name)
        self.ids += 2
        for grown in (first, second):
            self.specs[NodeKey(node.request, grown.name)] = grown
        return (second, first)

    def _stepping(self, rng: Random) -> PlayedEngine | None:
        busy = [engine for engine in self.engines.values() if engine.step is not None]
        return rng.choice(busy) if busy else None

    def _leave(
        self,
        engine: PlayedEngine,
        kind: type[StepEnded] | type[StepFailed],
        *reports: tuple[NodeReport, ...],
    ) -> None:
        step, engine.step = engine.step, None
        self.send(kind(engine.event.engine, step, *reports, self.now - engine.started))


ACTIONS = (
    (Player.let_time_pass, 20),
    (Player.bring_leaf, 20),
    (Player.end_step, 30),
    (Player.end_call, 14),
    (Player.bring_graph, 5),
    (Player.open_program, 5),
    (Player.close_program, 4),
    (Player.cancel_node, 4),
    (Player.fail_step, 3),
    (Player.cancel_request, 1),
    (Player.tick_early, 1),
)


def play(player: Player, rng: Random, num_requests: int, hang_every: int = 5000) -> None:
    """Play until so many requests have arrived, then let everything end."""
    actions = [action for action, _ in ACTIONS]
    weights = [weight for _, weight in ACTIONS]
    turn = 0
    while len(player.graphs) + len(player.leaves) < num_requests:
        rng.choices(actions, weights)[0](player, rng)
        turn += 1
        if turn % hang_every == 0:
            player.hang(rng)
    player.drain(rng)


def main(seed: int) -> None:
    """Print every command of one run."""
    player = Player()
    player.record = []
    play(player, Random(seed), 600, hang_every=300)
    print("\n".join(map(repr, player.record)))
    print(key(player.ids, "last"))


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""Play engines and callers against the core at random.

``Player`` has one method per thing that can happen; each takes a ``Random`` for its choices and
sends the events a driver would send. ``CoreModel`` judges what comes back. Run as a script, it
prints the commands of one seeded run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from core_harness import key, spec
from core_invariants import validate
from core_model import STEP_TIMEOUT_S, CoreModel, PlayedEngine

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.scheduler.messages import (
    CallEnded,
    CallMade,
    Closing,
    EarlyArrived,
    EarlyAsked,
    EngineName,
    Fallback,
    LeafArrived,
    LoopHeldUp,
    NodeCancelled,
    NodeKey,
    NodeReport,
    NodeSpec,
    Reported,
    RequestArrived,
    RequestCancelled,
    RequestClosed,
    RequestId,
    RequestOpened,
    Stakes,
    StepEnded,
    StepFailed,
    Tick,
)


class Player(CoreModel):
    """Bring work, let it end well or badly, and let callers go away."""

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
        at_once = rng.random() < 0.2
        if at_once:
            self.at_once.add(name)
        self.send(LeafArrived(request, node, self.now, deadline, on_full, at_once=at_once))

    def bring_early(self, rng: Random) -> None:
        """Let a live request, or one that is over, bring early work."""
        requests = [*list(self.programs)[-3:], *list(self.graphs)[-5:], self._new_request()]
        owned = list(self.state.owned)
        node = NodeKey(rng.choice(requests), f"early{self.ids}")
        self.ids += 1
        self.early[node] = None
        self.send(EarlyArrived(node, rng.choice(owned)))

    def begin_answer(self, rng: Random) -> None:
        """Let a program, or one that is over, begin what it may ask for later."""
        if not self.state.live:
            self.open_program(rng)
        request = rng.choice([*list(self.programs)[-3:], self._new_request()])
        node = replace(self._spec(rng, f"ahead{self.ids}"), share=None, early=True)
        node = replace(node, engine=rng.choice(list(self.state.owned)))
        self.ids += 1
        name = NodeKey(request, node.name)
        self.specs[name] = node
        self.leaves[name] = None
        self.send(LeafArrived(request, node, self.now))

    def speculate(self, rng: Random) -> None:
        """Let a graph, or one that is over, begin what it may need."""
        request = rng.choice([*list(self.graphs)[-5:], self._new_request()])
        stakes = Stakes(rng.choice((0.0, 0.9, 1.0)), rng.choice((0.0, 0.5)))
        engine = rng.choice(list(self.state.owned))
        node = self._spec(rng, f"foreseen{self.ids}")
        node = replace(node, share=None, size=1, engine=engine, stakes=stakes)
        self.ids += 1
        name = NodeKey(request, node.name)
        self.specs[name] = node
        self.leaves[name] = None
        self.send(LeafArrived(request, node, self.now))

    def ask_answer(self, rng: Random) -> None:
        """Let a program ask for what it has begun, whatever has become of it."""
        begun = [name for name in list(self.leaves)[-20:] if name.node.startswith("ahead")]
        if begun:
            asked = rng.choice(begun)
            self.send(EarlyAsked(asked, self.specs[asked].engine))

    def make_call(self, rng: Random) -> None:
        """Tell of a call that began and ended without asking, of a program, a graph or nobody."""
        request = rng.choice([*self.programs, *self.graphs, self._new_request()])
        began = self.now - rng.choice((0.0, 0.001, 0.5))
        engine, kind = EngineName("chat"), PrimitiveKind.DECODING
        call = CallMade(request, "made", engine, kind, began, began, self.now, True)
        self.send(Reported((call,)))

    def bring_graph(self, rng: Random) -> None:
        """Let a whole request arrive."""
        request = self._new_request()
        names = [f"n{index}" for index in range(rng.randint(1, 6))]
        nodes = [
            self._spec(rng, name, *rng.sample(names[:index], rng.randint(0, min(index, 2))))
            for index, name in enumerate(names)
        ]
        nodes = [self._recoverable(rng, node) for node in nodes]
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
            if engine.stepped and node.node.startswith("foreseen"):
                kinds += ["taken"] * 4
            kind = rng.choice(kinds)
            if kind in ("final", "error", "partial", "taken"):
                least_s = self._least_s(rng) if kind == "error" else None
                reports.append(NodeReport(node, kind, None, least_s))  # type: ignore[arg-type]
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
                self.reported[node] = "done" if kind in ("final", "taken") else "failed"
        rng.shuffle(reports)
        if rng.random() < 0.1 and reports and reports[0].kind != "part":
            reports.append(reports[0])
        self._leave(engine, StepEnded, tuple(reports))

    def fail_step(self, rng: Random) -> None:
        """Let a step raise."""
        engine = self._stepping(rng)
        if engine is None:
            return
        errors = tuple(
            NodeReport(node, "error", None, least_s)
            for node in engine.held
            if (least_s := self._least_s(rng)) is not None
        )
        for node in engine.held:
            if len(engine.held) == 1 or node in self.streamed:
                self.reported[node] = "failed"
            else:
                self.solo[node] = None
        engine.held.clear()
        engine.parts.clear()
        self._leave(engine, StepFailed, errors=errors)

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
        self.send(CallEnded(node, name, ok, append, None if ok else self._least_s(rng)))

    def cancel_node(self, rng: Random) -> None:
        """Let the caller of a leaf, or of one node of a graph, go away."""
        recent = list(self.specs)[-40:]
        if recent:
            self.send(NodeCancelled(rng.choice(recent)))

    def hold_up(self, rng: Random) -> None:
        """Let the caller of a leaf hold up its loop."""
        recent = list(self.specs)[-40:]
        if recent:
            node = rng.choice(recent)
            self.at_once.add(node)
            self.send(LoopHeldUp(node))

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
            self.send(RequestClosed(request, self.now))

    def hang(self, rng: Random) -> None:
        """Let so much time pass that running steps hang."""
        self.now += STEP_TIMEOUT_S
        self.send(Tick())

    def close(self, rng: Random) -> None:
        """Close the scheduler."""
        self.send(Closing())
        assert not self.state.requests
        assert not self.state.pending

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
        assert not self.early
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
            kind=PrimitiveKind.RERANKING,  # cut into parts, and in no cache
        )

    def _least_s(self, rng: Random) -> float | None:
        """Say of an error whether another attempt may mend it, and when at the earliest."""
        return rng.choice((None, 0.0, 0.0, 0.2))

    def _recoverable(self, rng: Random, node: NodeSpec) -> NodeSpec:
        """Give a node further attempts and a fallback, or none; it may take others along."""
        backoffs_s = rng.choice(((), (), (0.0,), (0.01, 0.5), (0.0, 0.0, 3.0)))
        fallback = None
        if rng.random() < 0.3:
            first = self._spec(rng, f"{node.name}.else1", *node.after)
            last = self._spec(rng, f"{node.name}.else2", first.name)
            others = tuple(name for name in node.after[:1] if rng.random() < 0.5)
            fallback = Fallback(node.name, others, (last, first)[::-1])
        return replace(node, backoffs_s=backoffs_s, fallback=fallback)

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
        **parts: Any,
    ) -> None:
        step, engine.step = engine.step, None
        self.send(kind(engine.event.engine, step, *reports, self.now - engine.started, **parts))  # type: ignore[call-arg]


Action = Callable[[Player, Random], None]

ACTIONS: tuple[tuple[Action, int], ...] = (
    (Player.let_time_pass, 20),
    (Player.bring_leaf, 15),
    (Player.make_call, 5),
    (Player.bring_early, 8),
    (Player.end_step, 30),
    (Player.end_call, 14),
    (Player.bring_graph, 5),
    (Player.speculate, 6),
    (Player.open_program, 5),
    (Player.close_program, 4),
    (Player.cancel_node, 4),
    (Player.hold_up, 2),
    (Player.fail_step, 3),
    (Player.cancel_request, 1),
    (Player.tick_early, 1),
)


#: what may happen where hardly more than one request lives
FEW_ACTIONS: tuple[tuple[Action, int], ...] = (
    (Player.let_time_pass, 20),
    (Player.begin_answer, 20),
    (Player.ask_answer, 5),
    (Player.bring_leaf, 2),
    (Player.end_step, 20),
    (Player.end_call, 5),
    (Player.fail_step, 2),
    (Player.close_program, 3),
    (Player.cancel_node, 3),
    (Player.cancel_request, 1),
)


def play(
    player: Player,
    rng: Random,
    num_requests: int,
    hang_every: int = 5000,
    chosen: Sequence[tuple[Action, int]] = ACTIONS,
) -> None:
    """Play until so many requests have arrived, then let everything end."""
    actions = [action for action, _ in chosen]
    weights = [weight for _, weight in chosen]
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

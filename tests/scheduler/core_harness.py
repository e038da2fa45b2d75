"""Feed the core with events at explicit times and check its state after each."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Self

from core_invariants import validate

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.scheduler.commands import Command, WakeAt
from rag_accel.scheduler.messages import (
    BorrowedEngineAdded,
    CallEnded,
    CallMade,
    Closing,
    EngineName,
    Event,
    Fallback,
    LeafArrived,
    LoopHeldUp,
    NodeCancelled,
    NodeKey,
    NodeReport,
    NodeSpec,
    OwnedEngineAdded,
    ProgramBegan,
    ProgramEnded,
    Reported,
    RequestArrived,
    RequestCancelled,
    RequestClosed,
    RequestId,
    RequestOpened,
    StepEnded,
    StepFailed,
    Tick,
)
from rag_accel.scheduler.state import CoreOptions, EngineState, SchedulerState
from rag_accel.scheduler.transitions import handle


def key(request: int, node: str) -> NodeKey:
    """Name a node."""
    return NodeKey(RequestId(request), node)


def spec(
    name: str,
    engine: str = "e",
    *after: str,
    depth: int = 1,
    size: int = 1,
    share: Hashable | None = None,
    kind: PrimitiveKind = PrimitiveKind.EMBEDDING,
    fallback: Fallback | None = None,
) -> NodeSpec:
    """Describe a node."""
    where = EngineName(engine)
    return NodeSpec(name, where, kind, after, depth, size, share, fallback=fallback)


class Core:
    """Drive a core: each method sends one event and returns the commands but for ``WakeAt``."""

    def __init__(self, **options: Any) -> None:
        self.state = SchedulerState(CoreOptions(**options))
        self.wakes: list[float] = []

    def send(self, event: Event, at: float = 0.0, *, more: bool = False) -> list[Command]:
        commands = handle(self.state, event, at, more=more)
        if not more:
            validate(self.state, event)
        self.wakes += [command.at for command in commands if isinstance(command, WakeAt)]
        return [command for command in commands if not isinstance(command, WakeAt)]

    def engine(self, name: str = "e") -> EngineState:
        return self.state.engines[EngineName(name)]

    def own(self, name: str = "e", max_batch: int = 64, **parts: Any) -> Self:
        """Add an owned engine, and return the core."""
        assert self.send(OwnedEngineAdded(EngineName(name), max_batch, **parts)) == []
        return self

    def borrow(self, name: str = "b", limit: int | None = None) -> Self:
        """Add a borrowed engine, and return the core."""
        assert self.send(BorrowedEngineAdded(EngineName(name), limit)) == []
        return self

    def leaf(
        self,
        request: int,
        name: str,
        engine: str = "e",
        *,
        at: float = 0.0,
        deadline: float | None = None,
        on_full: Any = "wait",
        at_once: bool = False,
        **parts: Any,
    ) -> list[Command]:
        node = spec(name, engine, **parts)
        event = LeafArrived(RequestId(request), node, at, deadline, on_full, at_once=at_once)
        return self.send(event, at)

    def made(
        self, request: int, began: float, ended: float, engine: str = "b", ok: bool = True
    ) -> list[Command]:
        """Tell of a call that began and ended without asking."""
        kind = PrimitiveKind.DECODING
        call = CallMade(RequestId(request), "x", EngineName(engine), kind, began, began, ended, ok)
        return self.send(Reported((call,)), ended)

    def began(self, *requests: int) -> list[Command]:
        """Tell of programs that have begun and are not opened."""
        return self.send(Reported(tuple(ProgramBegan(RequestId(one), 0.0) for one in requests)))

    def ended(self, *requests: int) -> list[Command]:
        """Tell of such programs that have ended."""
        return self.send(Reported(tuple(ProgramEnded(RequestId(one), 0.0) for one in requests)))

    def graph(
        self,
        request: int,
        *nodes: NodeSpec,
        at: float = 0.0,
        deadline: float | None = None,
        on_full: Any = "wait",
    ) -> list[Command]:
        return self.send(RequestArrived(RequestId(request), nodes, at, deadline, on_full), at)

    def open(
        self,
        request: int,
        program: str = "p",
        at: float = 0.0,
        deadline: float | None = None,
        was_reported: bool = False,
    ) -> list[Command]:
        event = RequestOpened(RequestId(request), program, at, deadline, None, was_reported)
        return self.send(event, at)

    def close_program(self, request: int, at: float = 0.0) -> list[Command]:
        return self.send(RequestClosed(RequestId(request), at), at)

    def end_step(
        self, engine: str = "e", at: float = 0.0, took: float = 1.0, **reports: list[NodeKey]
    ) -> list[Command]:
        """End the running step; without reports every member is final."""
        state = self.engine(engine)
        if not reports:
            reports = {"final": list(state.running)}
        kinds: Any = [(node, kind) for kind, nodes in reports.items() for node in nodes]
        assert state.step is not None
        event = StepEnded(
            state.name, state.step, tuple(NodeReport(node, kind) for node, kind in kinds), took
        )
        return self.send(event, at)

    def fail_step(self, engine: str = "e", at: float = 0.0, took: float = 1.0) -> list[Command]:
        state = self.engine(engine)
        assert state.step is not None
        return self.send(StepFailed(state.name, state.step, took), at)

    def end_call(
        self,
        request: int,
        name: str,
        engine: str = "b",
        *append: NodeSpec,
        ok: bool = True,
        at: float = 0.0,
    ) -> list[Command]:
        return self.send(CallEnded(key(request, name), EngineName(engine), ok, append), at)

    def cancel_node(self, request: int, name: str, at: float = 0.0) -> list[Command]:
        return self.send(NodeCancelled(key(request, name)), at)

    def hold_up(self, request: int, name: str, at: float = 0.0) -> list[Command]:
        return self.send(LoopHeldUp(key(request, name)), at)

    def cancel_request(self, request: int, at: float = 0.0) -> list[Command]:
        return self.send(RequestCancelled(RequestId(request)), at)

    def tick(self, at: float) -> list[Command]:
        return self.send(Tick(), at)

    def close(self, at: float = 0.0) -> list[Command]:
        return self.send(Closing(), at)

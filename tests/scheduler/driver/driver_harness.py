"""Drive a real driver with fakes: callers that record, and gates that hold an engine back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rag_accel.engine_api import (
    BorrowedEngine,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    PrimitiveKind,
    TextBatch,
    WorkId,
)
from rag_accel.scheduler.driver import Driver, Result, error_for
from rag_accel.scheduler.messages import (
    CallEnded,
    EngineName,
    LeafArrived,
    NodeKey,
    NodeSpec,
    OnFull,
    Outcome,
    RequestArrived,
    RequestId,
    Tick,
)
from rag_accel.scheduler.state import CoreOptions
from rag_accel.testing import FAKE_PROFILE, FakeEngine, ManualClock, compute

PATIENCE_S = 20.0
"""How long a test waits for what has to happen; never how long something may take."""

EMBEDDING = PrimitiveKind.EMBEDDING


class Gate:
    """Compute only while open, and tell how many computations have come to it."""

    def __init__(self, is_open: bool = False) -> None:
        self._entered = threading.Semaphore(0)
        self._opened = threading.Event()
        if is_open:
            self._opened.set()

    def __call__(self, payload: Any) -> Any:
        self._entered.release()
        assert self._opened.wait(PATIENCE_S), "nobody opened the gate"
        return compute(payload)

    def wait_until_entered(self) -> None:
        assert self._entered.acquire(timeout=PATIENCE_S), "nobody came to the gate"

    def open(self) -> None:
        self._opened.set()


class Caller:
    """Be a client that records what it is told, and waits for the end."""

    def __init__(self, payload: Any = None) -> None:
        self.id = RequestId(0)
        self.payload = payload
        self.may_run = threading.Event()
        self.over = threading.Event()
        self.grants: list[NodeKey] = []
        self.partials: list[Any] = []
        self.ends: list[tuple[NodeKey, Outcome, Result | None, bool]] = []
        self.request_outcome: Outcome | None = None
        self.failed_node: NodeKey | None = None
        self.stream = False

    def request(self, node: NodeKey) -> EngineRequest:
        if isinstance(self.payload, BaseException):
            raise self.payload
        name = f"{node.request}/{node.node}"
        return EngineRequest(
            WorkId(name), str(node.request), EMBEDDING, self.payload, stream=self.stream
        )

    def granted(self, node: NodeKey) -> None:
        self.grants.append(node)
        self.may_run.set()

    def partial(self, node: NodeKey, output: EngineOutput) -> None:
        self.partials.append(output.value)

    def ended(self, node: NodeKey, outcome: Outcome, result: Result | None, shared: bool) -> None:
        self.ends.append((node, outcome, result, shared))
        self.over.set()

    def retry_after_s(self, node: NodeKey, error: BaseException) -> float | None:
        return None

    def retried(self, node: NodeKey) -> None:
        raise AssertionError("a primitive without further attempts had one")

    def fell_back(self, node: NodeKey) -> None:
        raise AssertionError("a primitive without a fallback had one")

    def request_ended(self, outcome: Outcome, node: NodeKey | None) -> None:
        self.request_outcome, self.failed_node = outcome, node
        self.over.set()


class LeafCall(Caller):
    """Be the client of one leaf."""

    def __init__(self, key: NodeKey, payload: Any) -> None:
        super().__init__(payload)
        self.key = key

    @property
    def outcome(self) -> Outcome:
        assert self.over.wait(PATIENCE_S), f"{self.key} never ended"
        ((_, outcome, _, _),) = self.ends
        return outcome

    def value(self) -> Any:
        """Return the value, or raise what it ended with."""
        error = error_for(self.outcome, self.ends[0][2], "the test")
        if error is not None:
            raise error
        assert self.ends[0][2] is not None
        return self.ends[0][2].value


class Rig:
    """Hold a driver with the owned engine ``e`` and the borrowed engine ``b``."""

    def __init__(
        self,
        engine: Any = None,
        *,
        max_concurrency: int | None = None,
        clock: ManualClock | None = None,
        check: Callable[[EngineRequest, EngineOutput], EngineOutput] | None = None,
        observer: Any = None,
        **options: Any,
    ) -> None:
        parts: dict[str, Any] = {"clock": clock, "observer": observer}
        if check is not None:
            parts["check"] = check
        self.driver = Driver(CoreOptions(**options), **parts)
        self.engine = engine if engine is not None else FakeEngine()
        self.e = self.driver.add_engine("e", self.engine)
        self.b = self.driver.add_borrowed(
            BorrowedEngine("b", frozenset({EMBEDDING}), max_concurrency)
        )

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *error: object) -> None:
        self.driver.close(PATIENCE_S)

    def leaf(
        self,
        payload: Any = "text",
        engine: str = "e",
        request: RequestId | None = None,
        *,
        share: Hashable | None = None,
        on_full: OnFull = "wait",
        deadline: float | None = None,
        stream: bool = False,
    ) -> LeafCall:
        """Submit a leaf; a text stands for a batch of one."""
        rid = request if request is not None else self.driver.new_request()
        spec = NodeSpec("leaf", EngineName(engine), EMBEDDING, share=share)
        call = LeafCall(
            NodeKey(rid, "leaf"), TextBatch((payload,)) if isinstance(payload, str) else payload
        )
        call.stream = stream
        event = LeafArrived(rid, spec, self.driver.now(), deadline, on_full)
        self.driver.submit(event, call)
        return call

    def graph(
        self,
        *nodes: NodeSpec,
        payload: Any = None,
        on_full: OnFull = "wait",
        deadline: float | None = None,
    ) -> Caller:
        """Submit a whole request."""
        caller = Caller(TextBatch(("graph",)) if payload is None else payload)
        caller.id = self.driver.new_request()
        event = RequestArrived(caller.id, nodes, self.driver.now(), deadline, on_full)
        self.driver.submit(event, caller)
        return caller

    def end_call(self, call: LeafCall, ok: bool = True) -> None:
        """Give a leaf's permit back."""
        self.driver.post(CallEnded(call.key, self.b, ok))

    def settle(self) -> None:
        """Return once everything posted so far was dealt with."""
        self.driver.ask(lambda: None)

    def advance(self, clock: ManualClock, seconds: float) -> None:
        """Let time pass, and let the driver notice."""
        clock.advance(seconds)
        self.driver.post(Tick())
        self.settle()

    def become_idle(self) -> None:
        """Fail unless nothing lives any more, once running steps have come back."""
        for _ in range(2000):
            if self.driver.is_idle:
                return
            threading.Event().wait(0.005)
        raise AssertionError("something lives on")


def stepped_profile(**changes: Any) -> EngineProfile:
    """Return a profile of an engine that keeps work between steps."""
    return replace(FAKE_PROFILE, stepped=True, **changes)


@contextmanager
def held_back(gate: Gate) -> Iterator[Gate]:
    """Open the gate in any case, so that its engine's thread can end."""
    try:
        yield gate
    finally:
        gate.open()

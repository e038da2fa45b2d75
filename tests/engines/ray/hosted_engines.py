"""Factories of engines that actors make in tests, found by the path of this module."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rag_accel.engine_api import (
    Capability,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    PrimitiveKind,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.engines.bases import OwnEngine
from rag_accel.testing import FakeEngine
from rag_accel.testing.fakes import FAKE_PROFILE
from rag_accel.testing.faults import Faults

#: Engines by the name their test gave them, newest last.
made: dict[str, list[Any]] = {}


def fake(name: str = "", **options: Any) -> FakeEngine:
    """Return a fake engine, and note it under a name."""
    kinds: frozenset[PrimitiveKind] = options.pop("kinds", FAKE_PROFILE.kinds)
    max_batch: int = options.pop("max_batch", FAKE_PROFILE.max_batch)
    engine = FakeEngine(replace(FAKE_PROFILE, kinds=kinds, max_batch=max_batch), **options)
    made.setdefault(name, []).append(engine)
    return engine


def breaking(name: str) -> FakeEngine:
    """Return an engine whose steps raise where a text is ``bad``."""

    def item(request: EngineRequest) -> Any:
        return "raise" if request.payload == TextBatch(("bad",)) else None

    return fake(name, faults=Faults(item=item))


def not_an_engine() -> object:
    """Return something else."""
    return object()


class GatedEngine(OwnEngine):
    """An engine whose work ends when a test opens its gate; streams a first part before.

    Args:
        name: under which the test finds it.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            EngineProfile(
                frozenset({PrimitiveKind.DECODING, PrimitiveKind.EMBEDDING}),
                stepped=True,
                interruptible=True,
                capabilities=frozenset({Capability.STREAM, Capability.BOUNDS_ITS_WORK}),
            )
        )
        self.wake = threading.Condition()
        self.held: dict[WorkId, EngineRequest] = {}
        self.fresh: list[WorkId] = []
        self.forgotten: list[tuple[tuple[str, ...], str]] = []
        self.cancelled: list[WorkId] = []
        self.budgets: list[StepBudget] = []
        self.deadlines: list[tuple[float, float | None]] = []
        self.is_open = False
        self.interrupted = False
        made.setdefault(name, []).append(self)

    def submit(self, work: Sequence[EngineRequest]) -> None:
        with self.wake:
            for request in work:
                self.held[request.id] = request
                self.fresh += [request.id] if request.stream else []
                self.deadlines.append((request.arrived_at, request.deadline))
            self.wake.notify_all()

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        self.budgets.append(budget)
        with self.wake:
            self.wake.wait_for(
                lambda: self.is_open or self.interrupted or self.fresh, budget.time_s
            )
            self.interrupted = False
            fresh, self.fresh = self.fresh, []
            outputs = [EngineOutput(id, "partial", "first ") for id in fresh]
            if self.is_open:
                outputs += [EngineOutput(id, "final", "first last") for id in self.held]
                self.held.clear()
            return outputs

    def open_gate(self) -> None:
        with self.wake:
            self.is_open = True
            self.wake.notify_all()

    def cancel(self, ids: Sequence[WorkId]) -> None:
        with self.wake:
            self.cancelled += ids
            for id in ids:
                self.held.pop(id, None)
            self.wake.notify_all()

    def forget(self, documents: Sequence[str], namespace: str = "") -> None:
        self.forgotten.append((tuple(documents), namespace))

    def interrupt(self) -> None:
        with self.wake:
            self.interrupted = True
            self.wake.notify_all()


class PoisonedEngine(FakeEngine):
    """A fake engine that ends its process where a text is ``poison``.

    Args:
        name: under which the test finds it, to set ``dies``.
    """

    def __init__(self, name: str = "") -> None:
        super().__init__(replace(FAKE_PROFILE, max_batch=32))
        self.dies: Callable[[PoisonedEngine], object] = lambda _: os.kill(
            os.getpid(), signal.SIGKILL
        )
        self._poisons: set[WorkId] = set()
        made.setdefault(name, []).append(self)

    def submit(self, work: Sequence[EngineRequest]) -> None:
        self._poisons |= {r.id for r in work if r.payload == TextBatch(("poison",))}
        super().submit(work)

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        if self._poisons:
            self.dies(self)
            return ()
        return super().step(budget)


class FileGatedEngine(FakeEngine):
    """A fake engine that holds its work until a file is there, in whichever process it runs.

    Args:
        gate: the file.
    """

    def __init__(self, gate: str) -> None:
        super().__init__(replace(FAKE_PROFILE, stepped=True))
        self._gate = Path(gate)
        self._pause = threading.Event()

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        if not self._gate.exists():
            self._pause.wait(0.01)
            return ()
        return super().step(budget)

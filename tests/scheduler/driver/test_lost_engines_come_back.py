"""An engine that hangs loses its own work only, and is used again once it returns."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue

import pytest
from driver_harness import PATIENCE_S, Gate, Rig, held_back, stepped_profile

from rag_accel.engine_api import (
    Capability,
    EngineBase,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    StepBudget,
)
from rag_accel.errors import EngineLostError
from rag_accel.testing import FakeEngine, ManualClock


@pytest.mark.parametrize("stepped", [False, True])
def test_work_of_a_hanging_step_is_lost_after_hang_s(stepped: bool) -> None:
    gate, clock = Gate(), ManualClock()
    engine = FakeEngine(stepped_profile() if stepped else FakeEngine().profile, compute=gate)
    with Rig(engine, clock=clock, step_timeout_s=10) as rig, held_back(gate):
        hanging = rig.leaf("hanging")
        gate.wait_until_entered()
        queued = rig.leaf("queued")
        rig.advance(clock, 9.9)
        assert not hanging.over.is_set()
        rig.advance(clock, 0.2)
        for call in (hanging, queued):
            with pytest.raises(EngineLostError):
                call.value()
        late = rig.leaf("late")
        with pytest.raises(EngineLostError):
            late.value()
        gate.open()
        rig.become_idle()
        rig.leaf("again").value()


class Waiting(EngineBase):
    """Wait for a server, in steps that end when the test says so."""

    profile: EngineProfile = stepped_profile(capabilities=frozenset({Capability.BOUNDS_ITS_WORK}))

    def __init__(self) -> None:
        self.begun: SimpleQueue[StepBudget] = SimpleQueue()
        self.outputs: SimpleQueue[list[EngineOutput]] = SimpleQueue()
        self.work: EngineRequest | None = None

    def submit(self, work: Sequence[EngineRequest]) -> None:
        (self.work,) = work

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        self.begun.put(budget)
        return self.outputs.get(timeout=PATIENCE_S)


def test_work_may_take_longer_than_hang_s_where_the_engine_bounds_it() -> None:
    engine, clock = Waiting(), ManualClock()
    with Rig(engine, clock=clock, step_timeout_s=10) as rig:
        call = rig.leaf()
        for _ in range(5):
            time_s = engine.begun.get(timeout=PATIENCE_S).time_s
            assert time_s is not None
            rig.advance(clock, time_s)
            engine.outputs.put([])
        engine.begun.get(timeout=PATIENCE_S)
        assert engine.work is not None
        engine.outputs.put([EngineOutput(engine.work.id, "final", "answer")])
        assert call.value() == "answer"
        assert clock.now() > 20


def test_no_time_is_too_far_away_for_the_mailbox() -> None:
    with Rig(step_timeout_s=float("inf")) as rig:
        rig.leaf("text", deadline=float("inf")).value()
        rig.leaf("text", deadline=1e30).value()
        assert rig.driver.internal_errors == 0

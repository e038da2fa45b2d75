"""A cancelled leaf ends at once, wherever it is; its neighbours never notice."""

from __future__ import annotations

import threading
from typing import Any

from driver_harness import PATIENCE_S, Gate, Rig, held_back, stepped_profile

from rag_accel.engine_api import PrimitiveKind, StepBudget
from rag_accel.scheduler.messages import CallEnded, NodeCancelled, NodeSpec, RequestCancelled
from rag_accel.testing import FakeEngine


def test_running_work_of_a_stepped_engine_is_cancelled_in_the_engine() -> None:
    gate = Gate()
    with Rig(FakeEngine(compute=gate, steps=100)) as rig, held_back(gate):
        call = rig.leaf("long")
        gate.wait_until_entered()
        rig.driver.post(NodeCancelled(call.key))
        assert call.outcome == "cancelled"
        gate.open()
        rig.become_idle()
        rig.leaf("next")
    cancelled = [call.ids for call in rig.engine.calls if call.method == "cancel"]
    assert (f"{call.key.request}/leaf",) in cancelled


def test_a_step_that_waits_stops_waiting_when_its_work_is_cancelled() -> None:
    class Waiting(FakeEngine):
        """Wait in a step for something that only an interrupt ends."""

        def __init__(self) -> None:
            super().__init__(stepped_profile(interruptible=True))
            self.waits = threading.Event()
            self.woken = threading.Event()

        def step(self, budget: StepBudget) -> Any:
            self.waits.set()
            assert self.woken.wait(PATIENCE_S)
            return []

        def interrupt(self) -> None:
            super().interrupt()
            self.woken.set()

    engine = Waiting()
    with Rig(engine) as rig:
        call = rig.leaf()
        assert engine.waits.wait(PATIENCE_S)
        rig.driver.post(NodeCancelled(call.key))
        assert call.outcome == "cancelled"
        rig.become_idle()
        assert [call.method for call in engine.calls][-1] == "cancel"


def test_a_cancelled_request_takes_its_queued_and_running_work_along() -> None:
    gate = Gate()
    with Rig(FakeEngine(compute=gate)) as rig, held_back(gate):
        kind = PrimitiveKind.EMBEDDING
        caller = rig.graph(
            NodeSpec("a", rig.e, kind),
            NodeSpec("b", rig.b, kind),
            NodeSpec("c", rig.e, kind, ("a", "b")),
        )
        gate.wait_until_entered()
        assert caller.may_run.wait(PATIENCE_S)
        rig.driver.post(RequestCancelled(caller.id))
        assert caller.over.wait(PATIENCE_S)
        assert caller.request_outcome == "cancelled"
        gate.open()
        rig.settle()
        assert not rig.driver.is_idle
        rig.driver.post(CallEnded(caller.grants[0], rig.b, ok=True))
        rig.become_idle()
        assert [end[0].node for end in caller.ends] == []

"""Past ``max_requests`` callers wait for room or are told at once; deadlines hold in the queue."""

from __future__ import annotations

import pytest
from driver_harness import PATIENCE_S, Gate, Rig, held_back

from rag_accel.engine_api import PrimitiveKind
from rag_accel.errors import BusyError, DeadlineError
from rag_accel.scheduler.messages import NodeSpec
from rag_accel.testing import FakeEngine, ManualClock


def test_a_caller_that_waits_for_room_is_let_in_when_another_leaves() -> None:
    with Rig(max_requests=1) as rig:
        first, second = rig.leaf(engine="b"), rig.leaf(engine="b")
        assert first.may_run.wait(PATIENCE_S)
        rig.settle()
        assert not second.may_run.is_set()
        rig.end_call(first)
        assert second.may_run.wait(PATIENCE_S)
        rig.end_call(second)
        assert second.outcome == "done"


def test_who_does_not_want_to_wait_is_refused_at_once() -> None:
    with Rig(max_requests=1) as rig:
        first = rig.leaf(engine="b")
        assert first.may_run.wait(PATIENCE_S)
        with pytest.raises(BusyError):
            rig.leaf(on_full="raise").value()
        graph = rig.graph(NodeSpec("n", rig.e, PrimitiveKind.EMBEDDING), on_full="raise")
        assert graph.over.wait(PATIENCE_S)
        assert graph.request_outcome == "rejected"
        rig.end_call(first)
        rig.leaf(on_full="raise").value()


def test_a_deadline_ends_a_leaf_in_the_queue_and_one_in_a_hanging_step() -> None:
    gate, clock = Gate(), ManualClock()
    with Rig(FakeEngine(compute=gate), clock=clock) as rig, held_back(gate):
        running = rig.leaf("running", deadline=5)
        gate.wait_until_entered()
        queued = rig.leaf("queued", deadline=5)
        patient = rig.leaf("patient")
        rig.advance(clock, 6)
        for call in (running, queued):
            with pytest.raises(DeadlineError):
                call.value()
        gate.open()
        patient.value()


def test_a_deadline_ends_a_wait_for_room() -> None:
    clock = ManualClock()
    with Rig(max_requests=1, clock=clock) as rig:
        first = rig.leaf(engine="b")
        assert first.may_run.wait(PATIENCE_S)
        waiting = rig.leaf(deadline=5)
        rig.advance(clock, 6)
        assert waiting.outcome == "deadline"
        rig.end_call(first)
        rig.become_idle()

"""Whoever shares one result object is told so, the one whose work it was included."""

from __future__ import annotations

from driver_harness import Gate, Rig, held_back

from rag_accel.scheduler.messages import NodeCancelled
from rag_accel.testing import FakeEngine


def test_leader_and_followers_learn_that_the_object_is_shared() -> None:
    gate = Gate()
    with Rig(FakeEngine(compute=gate)) as rig, held_back(gate):
        leader = rig.leaf("same", share="same")
        gate.wait_until_entered()
        followers = [rig.leaf("same", share="same") for _ in range(3)]
        rig.settle()
        gate.open()
        values = [call.value() for call in (leader, *followers)]
        assert all(value is values[0] for value in values)
        assert [call.ends[0][3] for call in (leader, *followers)] == [True] * 4
        assert len(rig.engine.served) == 1


def test_who_has_no_follower_has_the_object_alone() -> None:
    with Rig() as rig:
        call = rig.leaf("text", share="text")
        call.value()
        assert call.ends[0][3] is False


def test_a_follower_takes_over_from_a_cancelled_leader() -> None:
    gate = Gate()
    with Rig(FakeEngine(compute=gate)) as rig, held_back(gate):
        leader = rig.leaf("same", share="same")
        gate.wait_until_entered()
        first, second = (rig.leaf("same", share="same") for _ in range(2))
        rig.settle()
        rig.driver.post(NodeCancelled(leader.key))
        assert leader.outcome == "cancelled"
        gate.open()
        assert first.value() is second.value()
        rig.become_idle()

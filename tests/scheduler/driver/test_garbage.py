"""What a request held is free as soon as it has ended, while everything else stays alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from driver_harness import Gate, Rig, held_back

from rag_accel.scheduler.messages import NodeCancelled
from rag_accel.testing import FakeEngine


class Payload:
    """Be something to hold a weak reference to."""


class Forgetful(FakeEngine):
    """Keep no record of what it served: it would pin all of it."""

    def step(self, budget: Any) -> Any:
        outputs = super().step(budget)
        self.served.clear()
        self.calls.clear()
        return outputs


@pytest.fixture(autouse=True)
def _without_the_collector() -> Iterator[None]:
    """Only reference counts free anything in these tests: there must be no cycle either."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_payload_and_result_of_a_leaf_are_free_once_it_has_ended() -> None:
    made: list[weakref.ref[Any]] = []

    def compute(payload: Any) -> Any:
        value = np.zeros((1, 4), np.float32)
        made.append(weakref.ref(value))
        return value

    with Rig(Forgetful(compute=compute)) as rig:
        payload = Payload()
        made.append(weakref.ref(payload))
        call = rig.leaf(payload)
        call.value()
        del call, payload
        rig.become_idle()
        assert [ref() for ref in made] == [None, None]


def test_the_payload_of_a_cancelled_leaf_is_free_once_its_step_has_returned() -> None:
    gate = Gate()
    with Rig(Forgetful(compute=gate)) as rig, held_back(gate):
        payload = Payload()
        ref = weakref.ref(payload)
        call = rig.leaf(payload)
        gate.wait_until_entered()
        rig.driver.post(NodeCancelled(call.key))
        assert call.outcome == "cancelled"
        del call, payload
        gate.open()
        rig.become_idle()
        assert ref() is None

"""State an engine keeps for a result is freed when nobody is there to want the result."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from driver_harness import EMBEDDING, Gate, Rig, held_back, stepped_profile

from rag_accel.engine_api import EngineOutput, Handle, StepBudget
from rag_accel.scheduler.driver import handling
from rag_accel.scheduler.messages import NodeCancelled, NodeSpec, RequestCancelled, Tick
from rag_accel.testing import FAKE_PROFILE, FakeEngine


class Keeping(FakeEngine):
    """Give out a handle with every final, and remember which are live."""

    def __init__(self, *args: Any, **parts: Any) -> None:
        super().__init__(*args, **parts)
        self.live: set[Handle] = set()

    def step(self, budget: StepBudget) -> Any:
        outputs = list(super().step(budget))
        for place, output in enumerate(outputs):
            if output.kind == "final":
                outputs[place] = replace(output, handle=Handle(f"state of {output.id}"))
                self.live.add(outputs[place].handle)
        return outputs

    def release(self, handles: Any) -> None:
        super().release(handles)
        self.live.difference_update(handles)


def test_a_result_that_comes_after_its_request_was_cancelled_leaves_no_handle() -> None:
    gate = Gate()
    engine = Keeping(compute=gate)
    with Rig(engine) as rig, held_back(gate):
        caller = rig.graph(NodeSpec("n", rig.e, EMBEDDING))
        gate.wait_until_entered()
        rig.driver.post(RequestCancelled(caller.id))
        assert caller.over.wait(20)
        gate.open()
        rig.become_idle()
    assert engine.live == set()
    assert any(call.method == "release" and call.ids for call in engine.calls)


def test_a_result_of_a_stepped_engine_that_was_cancelled_meanwhile_leaves_no_handle() -> None:
    gate = Gate()
    engine = Keeping(stepped_profile(), compute=gate)
    with Rig(engine) as rig, held_back(gate):
        call = rig.leaf()
        gate.wait_until_entered()
        rig.driver.post(NodeCancelled(call.key))
        assert call.outcome == "cancelled"
        gate.open()
        rig.become_idle()
    assert engine.live == set()


@pytest.mark.parametrize("stepped", [True, False])
@pytest.mark.parametrize("when", ["before", "on the end of the step"])
def test_a_result_that_comes_when_the_scheduler_fails_leaves_no_handle(
    when: str, stepped: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "rag_accel.scheduler")
    gate = Gate()
    engine = Keeping(stepped_profile() if stepped else FAKE_PROFILE, compute=gate)
    with Rig(engine) as rig, held_back(gate):
        caller = rig.graph(NodeSpec("n", rig.e, EMBEDDING))
        gate.wait_until_entered()
        with monkeypatch.context() as broken:
            broken.setattr(handling, "handle", lambda *event, more: 1 / 0)
            if when == "before":
                rig.driver.post(Tick())
            else:
                gate.open()
            assert caller.over.wait(20)
            if when != "before":
                rig.settle()
        gate.open()
        rig.become_idle()
        assert caller.request_outcome == "failed"
    assert engine.live == set()


def test_a_leaf_has_no_use_for_a_handle() -> None:
    engine = Keeping()
    with Rig(engine) as rig:
        rig.leaf().value()
        rig.become_idle()
    assert engine.live == set()
    assert len([call for call in engine.calls if call.method == "release"]) == 1


def test_a_request_answers_for_the_handle_of_its_result_itself() -> None:
    engine = Keeping()
    with Rig(engine) as rig:
        caller = rig.graph(NodeSpec("n", rig.e, EMBEDDING))
        assert caller.over.wait(20)
        rig.become_idle()
        ((_, _, result, _),) = caller.ends
        assert result is not None
        assert {result.handle} == engine.live


def test_handles_of_intermediate_outputs_are_freed() -> None:
    engine = FakeEngine(steps=4)
    with Rig(engine) as rig:
        rig.leaf().value()
        rig.become_idle()
        assert engine.live_handles == frozenset()


def test_a_handle_that_comes_with_an_error_is_freed() -> None:
    released: list[Any] = []

    class Failing(FakeEngine):
        def step(self, budget: StepBudget) -> Any:
            return [
                EngineOutput(output.id, "error", error=ValueError("no"), handle=Handle("h"))
                for output in super().step(budget)
            ]

        def release(self, handles: Any) -> None:
            released.extend(handles)

    with Rig(Failing()) as rig:
        assert rig.leaf().outcome == "failed"
    assert released == [Handle("h")]


def test_handles_are_freed_when_the_step_that_gave_them_out_is_lost() -> None:
    class Odd(Keeping):
        def step(self, budget: StepBudget) -> Any:
            outputs = super().step(budget)
            if len(outputs) > 1:
                return [*outputs, None]
            return outputs

    gate = Gate()
    engine = Odd(compute=gate)
    with Rig(engine) as rig, held_back(gate):
        first = rig.leaf("first")
        gate.wait_until_entered()
        calls = [rig.leaf(f"text {n}") for n in range(3)]
        rig.settle()
        gate.open()
        first.value()
        for call in calls:
            call.value()
        rig.become_idle()
    assert engine.live == set()

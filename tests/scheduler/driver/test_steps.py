"""Owned engines are stepped in their worker: batches, failures, and what comes back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from driver_harness import Gate, Rig, held_back

from rag_accel.engine_api import (
    Capability,
    EngineBase,
    EngineOutput,
    EngineRequest,
    GenerationInput,
    Message,
    StepBudget,
    WorkId,
)
from rag_accel.errors import EngineOutputError
from rag_accel.requests.kinds import check_output
from rag_accel.testing import FAKE_PROFILE, FakeEngine, Faults


def poison(fault: Any) -> Faults:
    """Let everything succeed but the text ``poison``."""
    return Faults(lambda request: fault if request.payload.texts == ("poison",) else None)


def behind_a_gate(rig: Rig, gate: Gate, *payloads: Any) -> list[Any]:
    """Submit leaves while the engine is busy, so that they form one batch, then let it go on."""
    first = rig.leaf("first")
    gate.wait_until_entered()
    calls = [rig.leaf(payload) for payload in payloads]
    rig.settle()
    gate.open()
    first.value()
    return calls


@pytest.mark.parametrize("shares", [False, True])
def test_steps_get_a_share_of_the_cores_only_beside_an_engine_that_says_so(shares: bool) -> None:
    gate = Gate()
    able = FAKE_PROFILE.capabilities | ({Capability.SHARES_CORES} if shares else set())
    llm = FakeEngine(replace(FAKE_PROFILE, max_threads=2, capabilities=able), compute=gate)
    other = FakeEngine(replace(FAKE_PROFILE, max_threads=4))
    with Rig(llm, cores=4) as rig, held_back(gate):
        rig.driver.add_engine("other", other)
        held = rig.leaf("held")
        gate.wait_until_entered()
        rig.leaf("beside", "other").value()
        gate.open()
        held.value()
        rig.leaf("alone", "other").value()
    assert other.threads_granted == [2 if shares else 4, 4]


def test_every_method_but_interrupt_runs_on_one_thread() -> None:
    with Rig() as rig:
        for n in range(5):
            rig.leaf(f"text {n}").value()
    assert len(rig.engine.thread_ids) == 1
    assert rig.engine.is_closed


def test_an_item_error_reaches_its_caller_as_the_same_object() -> None:
    error = LookupError("no such text")
    with Rig(FakeEngine(faults=poison(error))) as rig:
        with pytest.raises(LookupError) as caught:
            rig.leaf("poison").value()
        assert caught.value is error


def test_an_error_raised_by_a_step_reaches_its_caller_as_the_same_object() -> None:
    error = MemoryError("too large")

    class Failing(FakeEngine):
        def step(self, budget: StepBudget) -> Any:
            raise error

    with Rig(Failing()) as rig:
        with pytest.raises(MemoryError) as caught:
            rig.leaf().value()
        assert caught.value is error


def test_an_error_raised_by_submit_reaches_its_caller_as_the_same_object() -> None:
    error = OSError("device gone")
    with Rig(FakeEngine(faults=Faults(submit_error=error))) as rig:
        with pytest.raises(OSError, match="device gone") as caught:
            rig.leaf().value()
        assert caught.value is error


def test_work_without_an_output_ends_with_a_named_error_and_its_neighbours_succeed() -> None:
    gate = Gate()
    engine = FakeEngine(compute=gate, faults=poison("silent"))
    with Rig(engine) as rig, held_back(gate):
        before, bad = behind_a_gate(rig, gate, "before", "poison")
        before.value()
        with pytest.raises(EngineOutputError, match="without a result"):
            bad.value()


@pytest.mark.parametrize("fault", ["nan", "short"])
def test_vectors_that_cannot_be_right_are_refused_and_neighbours_succeed(fault: str) -> None:
    gate = Gate()
    engine = FakeEngine(compute=gate, faults=poison(fault))
    with Rig(engine, check=check_output) as rig, held_back(gate):
        before, bad = behind_a_gate(rig, gate, "before", "poison")
        before.value()
        with pytest.raises(EngineOutputError, match="cannot be right"):
            bad.value()


@pytest.mark.parametrize(
    "value",
    [np.zeros(3, np.float32), np.zeros((1, 2, 3), np.float32), [[1.0], [1.0, 2.0]], None, "text"],
    ids=["one dimension", "three dimensions", "ragged", "nothing", "text"],
)
def test_a_value_that_is_no_matrix_is_refused(value: Any) -> None:
    engine = FakeEngine(compute=lambda payload: value)
    with (
        Rig(engine, check=check_output) as rig,
        pytest.raises(EngineOutputError, match="cannot be right"),
    ):
        rig.leaf().value()


def test_a_payload_that_cannot_be_built_fails_alone() -> None:
    gate = Gate()
    error = ValueError("no prompt")
    with Rig(FakeEngine(compute=gate)) as rig, held_back(gate):
        before, bad, after = behind_a_gate(rig, gate, "before", error, "after")
        before.value()
        after.value()
        with pytest.raises(ValueError, match="no prompt") as caught:
            bad.value()
        assert caught.value is error


def test_a_payload_that_cannot_be_built_fails_even_if_nothing_else_is_in_the_step() -> None:
    with Rig() as rig:
        with pytest.raises(ValueError, match="no prompt"):
            rig.leaf(ValueError("no prompt")).value()
        rig.leaf("next").value()


def test_a_check_that_raises_fails_that_item_only() -> None:
    def check(request: EngineRequest, output: EngineOutput) -> EngineOutput:
        if request.payload.texts == ("poison",):
            raise ZeroDivisionError("in the check")
        return output

    gate = Gate()
    with Rig(FakeEngine(compute=gate), check=check) as rig, held_back(gate):
        before, bad = behind_a_gate(rig, gate, "before", "poison")
        before.value()
        with pytest.raises(ZeroDivisionError):
            bad.value()
        assert [len(batch) for batch in rig.engine.batches] == [1, 2]


def test_an_error_output_without_an_error_is_named() -> None:
    class Mute(EngineBase):
        profile = FAKE_PROFILE

        def submit(self, work: Any) -> None:
            self.held = list(work)

        def step(self, budget: StepBudget) -> Any:
            return [EngineOutput(request.id, "error") for request in self.held]

    with Rig(Mute()) as rig, pytest.raises(EngineOutputError, match="without one"):
        rig.leaf().value()


def test_outputs_for_unknown_work_are_ignored() -> None:
    class Chatty(FakeEngine):
        def step(self, budget: StepBudget) -> Any:
            strange = EngineOutput(WorkId("nobody's"), "final", value=1)
            return [strange, *super().step(budget), strange]

    with Rig(Chatty()) as rig:
        rig.leaf().value()
        assert rig.driver.internal_errors == 0


def test_an_engine_that_stays_broken_fails_each_of_its_callers_and_nothing_else() -> None:
    gate = Gate()
    engine = FakeEngine(compute=gate, faults=Faults(dies_at_step=2))
    with Rig(engine) as rig, held_back(gate):
        calls = behind_a_gate(rig, gate, "a", "b", "c")
        for call in calls:
            assert call.outcome == "failed"
        borrowed = rig.leaf(engine="b")
        assert borrowed.may_run.wait(20)
        rig.end_call(borrowed)
        assert borrowed.outcome == "done"


def test_partial_outputs_reach_their_caller_in_order() -> None:
    prompt = GenerationInput((Message("user", "say something long enough"),))
    with Rig(FakeEngine(steps=4)) as rig:
        call = rig.leaf(prompt, stream=True)
        text = call.value().text
        assert "".join(call.partials) == text
        assert len(call.partials) == 4


def test_a_caller_that_cannot_take_a_partial_fails_alone() -> None:
    prompt = GenerationInput((Message("user", "say something long enough"),))
    gate = Gate()
    with Rig(FakeEngine(compute=gate, steps=2)) as rig, held_back(gate):
        first = rig.leaf("first")
        gate.wait_until_entered()
        good, bad = rig.leaf(prompt, stream=True), rig.leaf(prompt, stream=True)
        bad.partials = None  # type: ignore[assignment]
        rig.settle()
        gate.open()
        first.value()
        text = good.value().text
        assert "".join(good.partials) == text
        with pytest.raises(AttributeError):
            bad.value()
        rig.become_idle()

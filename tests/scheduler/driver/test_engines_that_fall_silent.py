"""An engine that drops work without a word is found out, whatever it keeps between steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from driver_harness import Gate, Rig, held_back, stepped_profile

from rag_accel.engine_api import EngineOutput, EngineRequest, StepBudget
from rag_accel.errors import EngineOutputError
from rag_accel.scheduler.driver.worker import SILENT_STEP_S, SILENT_STEPS, Silence
from rag_accel.testing import FakeEngine, Faults, vector_of


def dropping(**parts: Any) -> FakeEngine:
    """Return an engine that keeps work between steps and drops the text ``poison``."""
    faults = Faults(lambda request: "silent" if request.payload.texts == ("poison",) else None)
    return FakeEngine(stepped_profile(), faults=faults, **parts)


def test_dropped_work_ends_with_a_named_error_after_a_bounded_number_of_steps() -> None:
    with Rig(dropping()) as rig:
        with pytest.raises(EngineOutputError, match="has lost this work") as caught:
            rig.leaf("poison").value()
        assert caught.value.code == "RA410"
        steps = [call for call in rig.engine.calls if call.method == "step"]
        assert len(steps) == 1 + SILENT_STEPS
        rig.become_idle()


def test_the_engine_is_told_to_forget_it_and_goes_on_with_the_next() -> None:
    with Rig(dropping()) as rig:
        call = rig.leaf("poison")
        assert call.outcome == "failed"
        np.testing.assert_array_equal(rig.leaf("next").value(), [vector_of("next")])
        cancelled = [one.ids for one in rig.engine.calls if one.method == "cancel"]
        assert (f"{call.key.request}/{call.key.node}",) in cancelled
        assert rig.driver.internal_errors == 0


def test_its_neighbours_get_their_results() -> None:
    gate = Gate()
    with Rig(dropping(compute=gate)) as rig, held_back(gate):
        first = rig.leaf("first")
        gate.wait_until_entered()
        good, bad = rig.leaf("good"), rig.leaf("poison")
        rig.settle()
        gate.open()
        first.value()
        np.testing.assert_array_equal(good.value(), [vector_of("good")])
        with pytest.raises(EngineOutputError, match="has lost this work"):
            bad.value()


class Slow(FakeEngine):
    """Take many steps for a text; report progress only if asked to."""

    def __init__(self, steps: int, says: bool) -> None:
        super().__init__(stepped_profile())
        self.left, self.says = steps, says
        self.work: EngineRequest | None = None

    def submit(self, work: Sequence[EngineRequest]) -> None:
        (self.work,) = work

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        assert self.work is not None
        self.left -= 1
        if self.left:
            return [EngineOutput(self.work.id, "progress")] if self.says else []
        return [EngineOutput(self.work.id, "final", vector_of("done")[None])]


def test_an_engine_that_tells_of_its_progress_may_take_as_many_steps_as_it_likes() -> None:
    with Rig(Slow(3 * SILENT_STEPS, says=True)) as rig:
        np.testing.assert_array_equal(rig.leaf().value(), [vector_of("done")])


def test_an_engine_that_ends_in_time_need_not_say_anything() -> None:
    with Rig(Slow(SILENT_STEPS, says=False)) as rig:
        np.testing.assert_array_equal(rig.leaf().value(), [vector_of("done")])


def test_steps_that_take_time_are_no_silence() -> None:
    silence = Silence()
    assert not any(silence.is_final(2 * SILENT_STEP_S) for _ in range(3 * SILENT_STEPS))


def test_a_few_steps_that_were_held_up_do_not_hide_it() -> None:
    silence = Silence()
    steps = [0.05 if n % 100 == 0 else 0.00001 for n in range(SILENT_STEPS)]
    assert [silence.is_final(step_s) for step_s in steps].index(True) == SILENT_STEPS - 1


def test_a_sign_of_life_begins_the_count_again() -> None:
    silence = Silence()
    for _ in range(SILENT_STEPS - 1):
        assert not silence.is_final(0.0)
    silence.end()
    assert not silence.is_final(0.0)

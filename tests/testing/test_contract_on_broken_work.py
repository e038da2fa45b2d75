"""The engine contract catches engines that do their work wrongly.

Each rule has at least one engine here that breaks it; a rule nobody can break tests nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from rag_accel.engine_api import (
    EngineOutput,
    EngineProfile,
    EngineRequest,
    GenerationOutput,
    PrimitiveKind,
    StepBudget,
    WorkId,
)
from rag_accel.testing import FAKE_PROFILE, EngineContract, FakeEngine, Faults

RunRule = Callable[[str, Callable[[], Any]], None]
LIFE_CYCLE = ("cancel", "close", "handles", "interrupt")
"""Words in the names of the rules about more than doing work, which are tested elsewhere."""


def is_bad(request: EngineRequest) -> bool:
    return request.request_id == "bad"


class LacksAMethod:
    """Has everything but ``hint``."""

    def __init__(self) -> None:
        inner = FakeEngine()
        self.profile = inner.profile
        for name in ("submit", "step", "cancel", "release", "interrupt", "close"):
            setattr(self, name, getattr(inner, name))


class ProfileChanges(FakeEngine):
    @property
    def profile(self) -> EngineProfile:
        return replace(FAKE_PROFILE, max_batch=1 + len(self.calls))


class ProfileDoesNotNameTheKind(FakeEngine):
    @property
    def profile(self) -> EngineProfile:
        return replace(FAKE_PROFILE, kinds=frozenset({PrimitiveKind.DECODING}))


class LosesTheLastOfABatch(FakeEngine):
    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        outputs = super().step(budget)
        return outputs[:-1] if len(outputs) > 1 else outputs


class ReportsEachEndTwice(FakeEngine):
    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        return [output for output in super().step(budget) for _ in range(2)]


class ReportsProgressAfterTheEnd(FakeEngine):
    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        ended = super().step(budget)
        return [*ended, *(EngineOutput(output.id, "progress") for output in ended)]


class ReportsStrangers(FakeEngine):
    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        return [*super().step(budget), EngineOutput(WorkId("stranger"), "progress")]


class FailsSoundWork(FakeEngine):
    def __init__(self) -> None:
        super().__init__(faults=Faults(item=lambda request: "error"))


class PutsExceptionsIntoFinals(FakeEngine):
    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        return [replace(output, error=ValueError("odd")) for output in super().step(budget)]


class RefusesIdsOfThePast(FakeEngine):
    def submit(self, work: Sequence[EngineRequest]) -> None:
        past = {id for batch in self.batches for id in batch}
        super().submit([request for request in work if request.id not in past])


class TakesOneItemPerStep(FakeEngine):
    """Says it is not stepped, and is."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: list[EngineRequest] = []

    def submit(self, work: Sequence[EngineRequest]) -> None:
        self.queue += work

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        super().submit(self.queue[:1])
        del self.queue[:1]
        return super().step(budget)


class WaitsWithoutWork(FakeEngine):
    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        outputs = super().step(budget)
        if not outputs:
            threading.Event().wait()
        return outputs


class BadItemSpoilsTheSubmit(FakeEngine):
    def submit(self, work: Sequence[EngineRequest]) -> None:
        for request in work:
            if is_bad(request):
                raise ValueError("bad payload")
        super().submit(work)


class BadItemFailsItsNeighbours(FakeEngine):
    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        outputs = super().step(budget)
        if not self.served or not any(map(is_bad, self.served[-1])):
            return outputs
        return [EngineOutput(output.id, "error", error=ValueError("bad")) for output in outputs]


class BadItemSucceeds(FakeEngine):
    """Lets bad work end like any other."""


class DependsOnItsPlaceInTheBatch(FakeEngine):
    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        return [
            replace(output, value=output.value + place)
            for place, output in enumerate(super().step(budget))
        ]


class DependsOnItsPast(FakeEngine):
    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        outputs = super().step(budget)
        return [replace(output, value=output.value + len(self.served)) for output in outputs]


class StreamsUnasked(FakeEngine):
    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        ended = super().step(budget)
        return [*(EngineOutput(output.id, "partial", "piece") for output in ended), *ended]


class StreamsAllOfItSoFar(FakeEngine):
    def __init__(self) -> None:
        super().__init__(steps=2, compute=lambda payload: GenerationOutput("a text"))

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        return [
            replace(output, value="a text") if output.kind == "partial" else output
            for output in super().step(budget)
        ]


BROKEN: dict[str, dict[Callable[[], Any], str]] = {
    "test_the_engine_has_every_method_of_the_protocol": {LacksAMethod: "lacks methods"},
    "test_the_profile_is_constant_and_names_what_the_engine_is_given": {
        ProfileChanges: "profile changed",
        ProfileDoesNotNameTheKind: "not in profile.kinds",
    },
    "test_every_submitted_id_ends_exactly_once": {
        LosesTheLastOfABatch: "no final or error output for",
        ReportsEachEndTwice: "ended 2 times",
        ReportsProgressAfterTheEnd: "'progress' after its end",
        ReportsStrangers: "never submitted",
    },
    "test_valid_work_succeeds_and_only_errors_carry_an_exception": {
        FailsSoundWork: "scripted fault",
        PutsExceptionsIntoFinals: "carries ValueError",
    },
    "test_an_ended_id_may_be_used_again": {RefusesIdsOfThePast: "no final or error output"},
    "test_a_non_stepped_engine_ends_everything_in_one_step": {TakesOneItemPerStep: "w1 ended"},
    "test_a_step_without_work_returns": {WaitsWithoutWork: r"step\(\) did not return"},
    "test_one_bad_item_does_not_harm_its_neighbours": {
        BadItemSpoilsTheSubmit: "bad payload",
        BadItemFailsItsNeighbours: "expected one final",
        BadItemSucceeds: "the bad item ended with",
    },
    "test_equal_payloads_give_equal_results_when_pure": {
        DependsOnItsPlaceInTheBatch: "in one batch",
        DependsOnItsPast: "alone than in a batch",
    },
    "test_partial_outputs_come_only_when_asked_for_and_add_up": {
        StreamsUnasked: "although stream is False",
        StreamsAllOfItSoFar: "do not make up the final text",
    },
}

RULES = sorted(
    name
    for name in dir(EngineContract)
    if name.startswith("test_") and not any(word in name for word in LIFE_CYCLE)
)


def test_every_rule_about_work_has_an_engine_that_breaks_it() -> None:
    assert sorted(BROKEN) == RULES


@pytest.mark.parametrize(
    ("rule", "make", "message"),
    [(rule, make, text) for rule, engines in BROKEN.items() for make, text in engines.items()],
)
def test_a_broken_engine_fails_its_rule(
    run_rule: RunRule, rule: str, make: Callable[[], Any], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        run_rule(rule, make)

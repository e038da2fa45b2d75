"""The engine contract passes sound engines and says what to do about the others."""

from __future__ import annotations

import inspect
import threading
import unittest
from collections.abc import Callable
from dataclasses import replace

import pytest

from rag_accel.engine_api import (
    Engine,
    EngineRequest,
    GenerationInput,
    Message,
    PrimitiveKind,
    TextBatch,
    WorkId,
)
from rag_accel.errors import EngineError
from rag_accel.testing import FAKE_PROFILE, EngineContract, FakeEngine, Faults

BAD = "bad"
INTERRUPTIBLE = replace(FAKE_PROFILE, interruptible=True)


def refuse_bad(request: EngineRequest) -> Exception | None:
    return EngineError("a bad item") if request.request_id == BAD else None


class FakeContract(EngineContract):
    """Feed fakes with embeddings."""

    timeout_s = 10.0

    def make_request(self, number: int) -> EngineRequest:
        payload = TextBatch((f"text {number}",))
        return EngineRequest(WorkId(f"w{number}"), "r", PrimitiveKind.EMBEDDING, payload)

    def make_bad_request(self) -> EngineRequest | None:
        return replace(self.make_request(99), request_id=BAD)


class TestFakeEngineInOneStep(FakeContract):
    def make_engine(self) -> Engine:
        return FakeEngine(faults=Faults(item=refuse_bad))


class TestFakeEngineInThreeSteps(FakeContract):
    def make_engine(self) -> Engine:
        return FakeEngine(steps=3, faults=Faults(item=refuse_bad))


class TestStreamingFakeEngine(FakeContract):
    def make_engine(self) -> Engine:
        return FakeEngine(steps=2, faults=Faults(item=refuse_bad))

    def make_request(self, number: int) -> EngineRequest:
        payload = GenerationInput((Message("user", f"question {number}"),))
        return EngineRequest(WorkId(f"w{number}"), "r", PrimitiveKind.DECODING, payload)


class WaitingContract(FakeContract):
    """Its steps wait for nothing but an interrupt."""

    def make_engine(self) -> Engine:
        return FakeEngine(INTERRUPTIBLE, faults=Faults(hang=threading.Event()))


def test_an_engine_that_waits_passes_the_rule_about_interrupts() -> None:
    WaitingContract().test_interrupt_makes_a_waiting_step_return()


RULES = sorted(name for name in dir(EngineContract) if name.startswith("test_"))


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_says_what_to_do_when_it_fails(rule: str) -> None:
    text = inspect.getdoc(getattr(EngineContract, rule)) or ""
    assert "\n\nTroubleshooting: if this fails, " in text


@pytest.mark.parametrize(
    "rule",
    [
        "test_work_cancelled_between_steps_never_reports_again",
        "test_handles_can_be_released_twice",
        "test_interrupt_makes_a_waiting_step_return",
    ],
)
def test_rules_about_abilities_an_engine_does_not_claim_are_skipped(
    run_rule: Callable[[str, Callable[[], Engine]], None], rule: str
) -> None:
    with pytest.raises(unittest.SkipTest):
        run_rule(rule, FakeEngine)


def test_the_rule_about_bad_items_is_skipped_if_there_can_be_none() -> None:
    class NoBadItem(TestFakeEngineInOneStep):
        def make_bad_request(self) -> EngineRequest | None:
            return None

    with pytest.raises(unittest.SkipTest, match="make_bad_request"):
        NoBadItem().test_one_bad_item_does_not_harm_its_neighbours()


def test_an_engine_is_used_on_one_thread_only_that_is_not_the_callers() -> None:
    engines: list[FakeEngine] = []

    class Recording(TestFakeEngineInThreeSteps):
        def make_engine(self) -> Engine:
            engines.append(FakeEngine(steps=3, faults=Faults(item=refuse_bad)))
            return engines[-1]

    Recording().test_every_submitted_id_ends_exactly_once()
    (engine,) = engines
    assert len(engine.thread_ids) == 1
    assert threading.get_ident() not in engine.thread_ids
    assert engine.is_closed

"""Closing ends whoever waits, promptly, and leaves no thread."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from driver_harness import EMBEDDING, PATIENCE_S, Gate, LeafCall, Rig, held_back

from rag_accel.engine_api import BorrowedEngine, EngineBase, StepBudget
from rag_accel.errors import ClosedError, ConfigError
from rag_accel.scheduler.driver import Driver
from rag_accel.scheduler.messages import (
    EngineLeft,
    LeafArrived,
    NodeCancelled,
    NodeKey,
    NodeSpec,
)
from rag_accel.scheduler.state import CoreOptions
from rag_accel.testing import FAKE_PROFILE, FakeEngine


def test_closing_ends_what_is_queued_running_and_granted() -> None:
    gate = Gate()
    rig = Rig(FakeEngine(compute=gate), max_requests=3)
    with held_back(gate):
        running = rig.leaf("running")
        gate.wait_until_entered()
        queued, granted = rig.leaf("queued"), rig.leaf(engine="b")
        assert granted.may_run.wait(PATIENCE_S)
        waiting = rig.leaf("waiting for room")
        graph = rig.graph(NodeSpec("n", rig.e, EMBEDDING))
        rig.settle()
        assert rig.driver.close(0.0) is False
        for call in (running, queued, granted, waiting):
            assert call.outcome == "closed"
        assert graph.over.wait(PATIENCE_S)
        assert graph.request_outcome == "closed"
        gate.open()
    assert rig.driver.close(PATIENCE_S)
    assert rig.engine.is_closed


def test_many_threads_can_close_at_once() -> None:
    rig = Rig()
    calls = [rig.leaf(f"text {n}", engine="b") for n in range(20)]
    threads = [threading.Thread(target=rig.driver.close, args=(PATIENCE_S,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert {call.outcome for call in calls} == {"closed"}
    assert rig.driver.close(PATIENCE_S)


def test_a_closed_driver_ignores_what_is_reported_late() -> None:
    rig = Rig()
    call = rig.leaf(engine="b")
    assert call.may_run.wait(PATIENCE_S)
    rig.driver.close(PATIENCE_S)
    rig.end_call(call)
    rig.driver.post(NodeCancelled(call.key))
    assert len(call.ends) == 1
    assert rig.driver.ask(lambda: 5) == 5


def test_who_slips_in_behind_the_last_event_is_turned_away() -> None:
    """A caller may have looked at ``closed`` just before somebody else closed."""
    rig = Rig()
    rig.driver.close(PATIENCE_S)
    key = NodeKey(rig.driver.new_request(), "n")
    late = LeafCall(key, "text")
    event = LeafArrived(key.request, NodeSpec("n", rig.e, EMBEDDING), 0.0)
    rig.driver._put(event, late)  # pyright: ignore[reportPrivateUsage]
    assert late.outcome == "closed"


def test_no_caller_is_forgotten_while_many_threads_submit_and_one_closes() -> None:
    for _ in range(20):
        rig = Rig()
        calls: list[LeafCall] = []
        start = threading.Barrier(5)

        def submit(rig: Rig = rig, calls: Any = calls, start: Any = start) -> None:
            start.wait(PATIENCE_S)
            while True:
                try:
                    calls.append(rig.leaf())
                except ClosedError:
                    return

        threads = [threading.Thread(target=submit) for _ in range(4)]
        for thread in threads:
            thread.start()
        start.wait(PATIENCE_S)
        rig.driver.close(PATIENCE_S)
        for thread in threads:
            thread.join(PATIENCE_S)
        assert {call.outcome for call in calls} <= {"done", "closed"}


def test_an_engine_may_close_the_driver_from_its_step() -> None:
    answers: list[bool] = []

    class Closing(FakeEngine):
        def step(self, budget: StepBudget) -> Any:
            answers.append(rig.driver.close(0.05))
            return super().step(budget)

    rig = Rig(Closing())
    call = rig.leaf()
    assert call.outcome in ("done", "closed")
    assert rig.driver.close(PATIENCE_S)
    assert answers == [False]


def test_an_engine_that_fails_to_close_or_to_be_interrupted_keeps_no_caller() -> None:
    class Stubborn(EngineBase):
        profile = FAKE_PROFILE

        def interrupt(self) -> None:
            raise RuntimeError("no")

        def close(self) -> None:
            raise RuntimeError("never")

    driver = Driver(CoreOptions())
    other = FakeEngine()
    driver.add_engine("stubborn", Stubborn())  # type: ignore[arg-type]
    driver.add_engine("other", other)
    assert driver.close(PATIENCE_S)
    assert other.is_closed


def test_an_engine_that_takes_no_work_is_refused() -> None:
    with Rig() as rig:
        with pytest.raises(ConfigError, match="takes no work"):
            rig.driver.add_engine("none", FakeEngine(replace(FAKE_PROFILE, max_batch=0)))
        with pytest.raises(ConfigError, match="lets no call in"):
            rig.driver.add_borrowed(BorrowedEngine("none", frozenset(), 0))
        with pytest.raises(ConfigError, match="used twice"):
            rig.driver.add_engine("e", FakeEngine())


def test_closing_waits_for_an_engine_that_has_left() -> None:
    gate = Gate()

    class Closing(FakeEngine):
        def close(self) -> None:
            gate("")
            super().close()

    engine = Closing()
    rig = Rig(engine)
    with held_back(gate):
        rig.driver.post(EngineLeft(rig.e))
        gate.wait_until_entered()
        assert rig.driver.close(0.0) is False
        gate.open()
    assert rig.driver.close(PATIENCE_S)
    assert engine.is_closed

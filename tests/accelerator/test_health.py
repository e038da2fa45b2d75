"""What a readiness probe is told of an accelerator and its engines."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from accel_harness import PATIENCE_S, opened

from rag_accel import END, START, Accelerator, EngineLostError, RAGraph
from rag_accel.engine_api import Health, worst_state
from rag_accel.testing import FakeEngine


class StuckEngine(FakeEngine):
    """An engine whose step does not end until a test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go = threading.Event()

    def step(self, budget):
        self.may_go.wait(PATIENCE_S)
        return super().step(budget)


def asking() -> RAGraph:
    return RAGraph().add_generation("a", "{input}").add_edge(START, "a").add_edge("a", END)


def test_an_accelerator_whose_engines_all_work_is_ready() -> None:
    with opened(llm=FakeEngine(), embedder=FakeEngine()) as acc:
        health = acc.health()
    assert health.is_ready
    assert [part.name for part in health.parts] == ["embedder", "llm"]


def test_an_engine_that_hangs_is_lost_and_named() -> None:
    stuck = StuckEngine()
    with Accelerator(llm=stuck, embedder=FakeEngine(), step_timeout_s=0.05) as acc:
        with ThreadPoolExecutor(1) as caller:
            asked = caller.submit(acc.run, asking(), input="?")
            with pytest.raises(EngineLostError):
                asked.result(PATIENCE_S)
        health = acc.health()
        stuck.may_go.set()
    assert health.state == "lost"
    assert health.why == "not ready: llm"


def test_a_closed_accelerator_is_lost() -> None:
    acc = Accelerator(llm=FakeEngine())
    acc.close()
    assert acc.health() == Health("accelerator", "lost", "it is closed")


def test_of_parts_that_are_all_needed_the_worst_counts() -> None:
    assert worst_state([Health("a"), Health("b", "paused"), Health("c", "lost")]) == "lost"
    assert worst_state([]) == "ready"

"""A stage that cannot end in time is not begun, and its error says why."""

from __future__ import annotations

import time

import pytest
from accel_harness import PATIENCE_S, Gate, function_graph, opened

from rag_accel import DeadlineError, RAGraph
from rag_accel.scheduler.learning import FEWEST_TIMES

TAKES_S = 0.3


def slow(calls: list[str]) -> RAGraph:
    """Return a graph of one function that takes a while and notes its calls."""

    def work(text: str) -> str:
        calls.append(text)
        time.sleep(TAKES_S)
        return text.upper()

    return function_graph(work)


def test_the_error_names_the_stage_and_both_times() -> None:
    calls: list[str] = []
    with opened() as acc:
        graph = slow(calls)
        for _ in range(FEWEST_TIMES):
            assert acc.run(graph, input="a") == "A"
        began = time.monotonic()
        with pytest.raises(DeadlineError, match="not begun") as raised:
            acc.run(graph, input="late", deadline_s=TAKES_S / 2)
        assert time.monotonic() - began < TAKES_S / 2
        assert "late" not in calls
        error = raised.value
        assert "s0" in str(error.where)
        assert "s left" in str(error.found)
        assert float(str(error.valid).split()[0]) == pytest.approx(TAKES_S, abs=0.05)


def test_a_deadline_that_suffices_changes_nothing() -> None:
    calls: list[str] = []
    with opened() as acc:
        graph = function_graph(calls.append)
        for number in range(FEWEST_TIMES + 3):
            assert acc.run(graph, input=f"a{number}", deadline_s=PATIENCE_S) is None
    assert calls == [f"a{number}" for number in range(FEWEST_TIMES + 3)]


def test_a_first_run_is_never_refused() -> None:
    with Gate() as gate, opened() as acc:
        with pytest.raises(DeadlineError, match="ran past"):
            acc.run(function_graph(lambda text: gate()), deadline_s=0.05, input="x")
        gate.open()

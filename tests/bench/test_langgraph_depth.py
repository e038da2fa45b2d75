"""The suite on depth-aware order of LangGraph programs runs all arms and defines its ratios."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

pytest.importorskip("langgraph")

from bench.depth_program import Program, Queued, Scheduled, Sizes
from bench.results import SuiteResult, as_json, from_json
from bench.suites import langgraph_depth, ratio_definitions

Ended = Callable[[SuiteResult], int]

TINY = Sizes(turns=2, wide=4, batch=2, answer_s=0.0)
PLAIN = ("plain LangGraph, one call", "plain LangGraph, calls of 2")


@pytest.fixture(scope="module")
def found() -> SuiteResult:
    return langgraph_depth.run(True, TINY)


def _medians(found: SuiteResult, workload: str, metric: str) -> dict[str, float]:
    return {
        row.system: row.median
        for row in found.rows
        if (row.workload, row.metric) == (workload, metric)
    }


@pytest.mark.bench
def test_all_arms_are_measured_and_every_ratio_is_defined(found: SuiteResult) -> None:
    assert from_json(as_json(found), found.suite) == found
    assert len({row.key for row in found.rows}) == len(found.rows)
    assert set(found.ratios) == set(ratio_definitions(found.suite))
    assert found.scripted, "engine and model are stand-ins"
    assert not found.emulated, "no emulated accelerator takes part"
    arms = {*PLAIN, "skeleton off", "skeleton on"}
    assert set(_medians(found, "1 user", "latency_ms")) == arms | {"skeleton off again"}
    assert set(_medians(found, "4 users", "latency_ms")) == arms
    assert all(row.n == TINY.turns for row in found.rows if row.metric == "latency_ms")


@pytest.mark.bench
def test_the_ratios_are_against_the_faster_of_the_plain_programs(found: SuiteResult) -> None:
    for workload, ending in (("1 user", ""), ("4 users", "_4")):
        times = _medians(found, workload, "latency_ms")
        best = min(PLAIN, key=times.__getitem__)
        gains = _medians(found, workload, "latency_ratio")
        assert found.ratios[f"langgraph_depth_vs_plain{ending}"] == gains[f"skeleton on / {best}"]
        assert (
            found.ratios[f"langgraph_depth_latency{ending}"] == gains["skeleton on / skeleton off"]
        )


@pytest.mark.bench
def test_every_vector_of_every_arm_is_the_same(found: SuiteResult) -> None:
    for workload in ("1 user", "4 users"):
        different = _medians(found, workload, "different_answers")
        assert set(different) == set(_medians(found, workload, "latency_ms"))
        assert set(different.values()) == {0}
    assert found.wrong == ()


def test_another_vector_fails_the_suite(monkeypatch: pytest.MonkeyPatch, ended: Ended) -> None:
    embed = Scheduled.embed

    async def changed(self: Scheduled, text: str) -> Any:
        return 2 * await embed(self, text)

    monkeypatch.setattr(Scheduled, "embed", changed)
    found = langgraph_depth.run(True, TINY)
    assert len(found.wrong) == 5  # three arms with one user, two with four
    assert all("skeleton" in one for one in found.wrong)
    assert ended(found) == 1


def test_a_run_answers_with_the_vector_of_each_text_it_asked_for() -> None:
    with closing(Queued(TINY, texts_per_call=3)) as queued:
        found = asyncio.run(Program(queued, TINY).run(2))
    parts = [f"question 1, part {number}" for number in range(4)]
    steps = [f"question 1, step{number}" for number in range(4)]
    assert set(found.answers[1]) == {*parts, *steps}
    assert len({*found.answers[1].values()}) == 8


@pytest.mark.parametrize(("texts_per_call", "calls"), [(4, [4]), (3, [3, 1])])
def test_the_worker_is_asked_in_calls_and_works_in_steps(
    monkeypatch: pytest.MonkeyPatch, texts_per_call: int, calls: list[int]
) -> None:
    asked: list[int] = []
    work = Queued._work
    with closing(Queued(TINY, texts_per_call)) as queued:
        monkeypatch.setattr(
            queued, "_work", lambda texts: (asked.append(len(texts)), work(queued, texts))[1]
        )
        vectors = asyncio.run(queued.embed_all(["a", "b", "c", "d"]))
        assert [len(batch) for batch in queued._engine.batches] == (
            [2, 2] if texts_per_call == 4 else [2, 1, 1]
        )
    assert asked == calls
    assert len(vectors) == 4

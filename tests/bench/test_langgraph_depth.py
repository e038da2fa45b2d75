"""The suite on depth-aware order of LangGraph programs runs all arms and defines its ratios."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

pytest.importorskip("langgraph")

from bench.depth_program import Queued, Scheduled, Sizes
from bench.results import SuiteResult
from bench.suites import langgraph_depth

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
def test_the_ratios_are_against_the_faster_of_the_plain_programs(found: SuiteResult) -> None:
    for workload, ending in (("1 user", ""), ("4 users", "_4")):
        times = _medians(found, workload, "latency_ms")
        best = min(PLAIN, key=times.__getitem__)
        gains = _medians(found, workload, "latency_ratio")
        assert found.ratios[f"langgraph_depth_vs_plain{ending}"] == gains[f"skeleton on / {best}"]
        assert (
            found.ratios[f"langgraph_depth_latency{ending}"] == gains["skeleton on / skeleton off"]
        )


def test_another_vector_fails_the_suite(monkeypatch: pytest.MonkeyPatch, ended: Ended) -> None:
    embed = Scheduled.embed

    async def changed(self: Scheduled, text: str) -> Any:
        return 2 * await embed(self, text)

    monkeypatch.setattr(Scheduled, "embed", changed)
    found = langgraph_depth.run(True, TINY)
    assert len(found.wrong) == 5  # three arms with one user, two with four
    assert all("skeleton" in one for one in found.wrong)
    assert ended(found) == 1


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

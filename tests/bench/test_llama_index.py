"""The suite on LlamaIndex runs all arms, compares their answers and defines its ratios."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("llama_index.embeddings.huggingface")

from bench.answers import too_many
from bench.llama_index_programs import UNBATCHED
from bench.results import SuiteResult, as_json, from_json
from bench.suites import llama_index, ratio_definitions

TINY = llama_index.Sizes(
    rounds=1,
    nodes=24,
    tuning_nodes=12,
    ingestions=1,
    stored=300,
    dimension=16,
    searches=2,
    pairs=1,
)

pytestmark = [pytest.mark.bench, pytest.mark.usefixtures("loop_of_the_thread")]


@pytest.fixture(scope="module")
def found() -> SuiteResult:
    return llama_index.run(True, TINY)


def test_all_arms_are_measured_and_every_ratio_is_defined(found: SuiteResult) -> None:
    assert from_json(as_json(found), found.suite) == found
    assert len({row.key for row in found.rows}) == len(found.rows)
    assert set(found.ratios) == set(ratio_definitions(found.suite))
    assert {row.system for row in found.rows} == {
        llama_index.PLAIN,
        llama_index.OURS,
        llama_index.IN_THREADS,
    }


def test_every_answer_is_the_plain_one(found: SuiteResult) -> None:
    assert any(row.metric == "different_answers" for row in found.rows)
    assert found.wrong == ()


def _compact() -> Any:
    return UNBATCHED["compact"](0.0)


def test_an_answer_that_differs_fails_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = llama_index._shown
    told: list[Any] = []

    def numbered(response: Any) -> Any:
        told.append(response)
        return shown(response), len(told)

    monkeypatch.setattr(llama_index, "_shown", numbered)
    pairs = asyncio.run(llama_index._rounds(_compact(), _compact(), 1, 0))
    rows = llama_index._pair_rows("compact", pairs)
    (wrong,) = too_many(rows, "different_answers")
    assert wrong.startswith("accelerated")

"""The suite on default stores runs all arms, compares their answers and defines its ratios."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("langchain_community")

from bench.results import SuiteResult, as_json, from_json
from bench.suites import default_stores, ratio_definitions
from rag_accel import Accelerator
from rag_accel.recognition import clients, store_copies

TINY = default_stores.Sizes(documents=200, dimension=16, turns=2, callers=4, searches=12)


@pytest.fixture(scope="module")
def found() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients, "MIN_NUMBERS", 0)
        patch.setattr(store_copies, "MIN_NUMBERS", 0)
        yield default_stores.run(True, TINY)


def test_all_arms_are_measured_and_every_ratio_is_defined(found: SuiteResult) -> None:
    assert from_json(as_json(found), found.suite) == found
    assert len({row.key for row in found.rows}) == len(found.rows)
    assert set(found.ratios) == set(ratio_definitions(found.suite))
    assert {row.system for row in found.rows} == {
        "plain",
        "kept matrix",
        "micro-batcher",
        "plain, one thread of FAISS",
        "accelerated",
    }
    assert {row.metric for row in found.rows} >= {"first_search_ms", "copying_search_ms"}


def test_every_answer_is_the_plain_one(found: SuiteResult) -> None:
    compared = [row for row in found.rows if row.metric == "different_documents"]
    assert {row.system for row in compared} == {
        "kept matrix",
        "micro-batcher",
        "plain, one thread of FAISS",
        "accelerated",
    }
    assert found.wrong == ()


def test_an_engine_searches_the_store_before_it_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_copies, "MIN_NUMBERS", 0)
    rotate, done = default_stores.rotate, list[int]()

    def noted(*args: Any) -> Any:
        done.append(searched(accelerator))
        found = rotate(*args)
        done.append(searched(accelerator))
        return found

    monkeypatch.setattr(default_stores, "rotate", noted)
    vectors = default_stores._vectors(TINY.documents, TINY.dimension, 1)
    with Accelerator() as accelerator:
        default_stores._in_memory(vectors, vectors[:8].tolist(), TINY, accelerator)
    before, after = done
    assert before == 1 + default_stores.WARM_UP
    assert after - before == TINY.turns


def searched(accelerator: Accelerator) -> int:
    """Return how many searches an engine has made."""
    engines: Any = accelerator.metrics.snapshot().get("engines", {})
    return sum(one["items"] for name, one in engines.items() if name.startswith("retrieval#"))


def test_an_answer_that_differs_fails_the_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    search = default_stores._KeptMatrix.search

    def backwards(self: Any, vector: Any, k: int) -> Any:
        return search(self, vector, k)[::-1]

    monkeypatch.setattr(default_stores._KeptMatrix, "search", backwards)
    assert any("different_documents" in one for one in default_stores.run(True, TINY).wrong)

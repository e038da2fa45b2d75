"""The suite on default stores runs all arms, compares their answers and defines its ratios."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("langchain_community")

from bench.suites import default_stores
from rag_accel import Accelerator
from rag_accel.adoption import store_copies

TINY = default_stores.Sizes(documents=200, dimension=16, turns=2, callers=4, searches=12)


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
        default_stores._in_memory(vectors, vectors[:8].tolist(), TINY, accelerator, {})
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

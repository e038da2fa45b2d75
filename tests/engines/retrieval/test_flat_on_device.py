"""Flat indexes with a copy on a device of torch: they answer as those without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from rag_accel.engine_api import Document, ScoredDocument
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec, Metric, load_index, save_index
from rag_accel.engines.retrieval.vectors import device_lists
from rag_accel.engines.retrieval.vectors.device_lists import DeviceLists
from rag_accel.engines.retrieval.vectors.learned_way import LearnedWay

DIMENSION, COUNT = 9, 200


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the device be used whatever it costs, in blocks of few vectors."""
    monkeypatch.setattr(LearnedWay, "choose", lambda self, numbers: True)
    monkeypatch.setattr(device_lists, "BLOCK_SCORES", 300)


def vectors(count: int, seed: int = 0) -> Any:
    # Whole numbers: many scores are equal.
    return np.random.default_rng(seed).integers(-2, 3, (count, DIMENSION)).astype(np.float32)


def made(hot: str | None, metric: Metric = Metric.L2, hot_bytes: int = 1 << 20) -> DocumentIndex:
    index = DocumentIndex(IndexSpec(DIMENSION, metric, hot=hot, hot_bytes=hot_bytes))
    put(index, range(COUNT), 0)
    return index


def put(index: DocumentIndex, numbers: Sequence[int], seed: int) -> None:
    documents = [Document(f"d{at}", f"text {at}", {"third": at % 3}) for at in numbers]
    index.add(documents, vectors(len(documents), seed))


def found(results: Sequence[Sequence[ScoredDocument]]) -> list[list[tuple[str, float]]]:
    return [[(hit.document.id, hit.score) for hit in one] for one in results]


def assert_equal(index: DocumentIndex, other: DocumentIndex) -> None:
    for k, where in ((5, None), (5, {"third": 1}), (400, None)):
        queries = vectors(4, seed=k)
        assert found(index.search(queries, k, where)) == found(other.search(queries, k, where))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(Metric),
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.lists(st.integers(0, COUNT + 9), max_size=9)),
            st.tuples(st.just("delete"), st.lists(st.integers(0, COUNT + 9), max_size=9)),
            st.tuples(st.just("search"), st.just([])),
        ),
        max_size=8,
    ),
)
def test_edits_are_those_of_one_without(metric: Metric, edits: list[tuple[str, list[int]]]) -> None:
    copied, other = made("cpu", metric), made(None, metric)
    assert_equal(copied, other)
    assert copied.tier_counts["device_vector_bytes"] == 4 * DIMENSION * COUNT
    for seed, (edit, numbers) in enumerate(edits, 1):
        for one in (copied, other):
            if edit == "put":
                put(one, numbers, seed)
            elif edit == "delete":
                one.delete([f"d{at}" for at in numbers])
        if edit == "search":
            assert_equal(copied, other)
    assert_equal(copied, other)


def test_the_first_search_after_a_change_copies_nothing() -> None:
    index = made("cpu")
    for expected in (0, COUNT, COUNT):
        index.search(vectors(1, seed=1), 3)
        assert index.tier_counts["device_vector_bytes"] == 4 * DIMENSION * expected
    assert index.tier_text == ("vectors on cpu: 2 of 3 searches",)


def test_more_vectors_than_hot_bytes_are_searched_here_and_named() -> None:
    index = made("cpu", hot_bytes=4 * DIMENSION * COUNT - 1)
    assert_equal(index, made(None))
    assert index.tier_text == (
        "vectors on cpu are not used: they take 7200 bytes, hot_bytes is 7199",
    )


def test_a_device_that_fails_is_left_and_no_search_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    index = made("cpu")

    def fail(*args: Any) -> Any:
        raise RuntimeError("CUDA error: device lost")

    monkeypatch.setattr(DeviceLists, "_there", fail)
    assert_equal(index, made(None))
    assert index.tier_text == (
        "vectors on cpu are not used: RuntimeError: CUDA error: device lost",
    )


def test_it_is_saved_and_loaded_for_another_device(tmp_path: Path) -> None:
    save_index(made("cpu"), tmp_path / "index", "f")
    loaded = load_index(tmp_path / "index")
    assert loaded.spec.hot == "cpu"
    assert_equal(loaded, made(None))
    assert load_index(tmp_path / "index", hot=None).tier_text == ()

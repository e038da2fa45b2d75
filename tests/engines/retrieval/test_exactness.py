"""A query finds the same documents, in the same order with the same scores, alone or in a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import faiss
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexKind, IndexSpec, Metric
from rag_accel.engines.retrieval.vectors.flat import FlatVectors

Maker = Callable[..., Any]


def _index(metric: Metric, kind: IndexKind, vectors: Any) -> DocumentIndex:
    size, dimension = vectors.shape
    clusters = {"num_clusters": min(size, 6), "nprobe": 2, "train_size": size}
    index = DocumentIndex(IndexSpec(dimension, metric, kind, **clusters))
    index.add([Document(str(number), "") for number in range(size)], vectors)
    assert index.is_trained == (kind is IndexKind.IVF)
    return index


@st.composite
def _searches(draw: st.DrawFn) -> tuple[Any, Any, list[int]]:
    """Draw vectors with duplicates, queries (some equal to a vector) and a k for each."""
    seed = draw(st.integers(0, 2**32 - 1))
    dimension, size = draw(st.integers(1, 40)), draw(st.integers(1, 80))
    different = draw(st.integers(1, size))
    num_queries = draw(st.integers(1, 40))
    is_whole = draw(st.booleans())
    offset = draw(st.sampled_from([0.0, 0.0, 100.0]))
    random = np.random.default_rng(seed)
    vectors = random.standard_normal((size, dimension)) + offset
    vectors = (np.round(vectors) if is_whole else vectors).astype(np.float32)
    vectors[different:] = vectors[random.integers(0, different, size - different)]
    queries = random.standard_normal((num_queries, dimension)).astype(np.float32)
    copied = random.random(num_queries) < 0.5
    queries[copied] = vectors[random.integers(0, size, int(copied.sum()))]
    ks = draw(st.lists(st.integers(0, size + 3), min_size=num_queries, max_size=num_queries))
    return vectors, queries, ks


@pytest.mark.usefixtures("blas_in_batches")
@settings(max_examples=60, deadline=None)
@given(metric=st.sampled_from(Metric), kind=st.sampled_from(IndexKind), searches=_searches())
def test_a_batch_finds_bit_by_bit_what_each_query_finds_alone(
    found: Maker, metric: Metric, kind: IndexKind, searches: tuple[Any, Any, list[int]]
) -> None:
    vectors, queries, ks = searches
    index = _index(metric, kind, vectors)
    together = found(index.search(queries, ks))
    alone = [found(index.search(query[None], k))[0] for query, k in zip(queries, ks, strict=True)]
    assert together == alone


@pytest.mark.usefixtures("blas_in_batches")
@settings(max_examples=60, deadline=None)
@given(metric=st.sampled_from(Metric), searches=_searches())
def test_a_flat_search_equals_a_float64_search(
    found: Maker, reference: Maker, metric: Metric, searches: tuple[Any, Any, list[int]]
) -> None:
    vectors, queries, ks = searches
    vectors, queries = np.round(vectors), np.round(queries)  # exact however they are summed
    ids = [str(number) for number in range(len(vectors))]
    expected = [
        reference(ids, vectors, query, k, metric) for query, k in zip(queries, ks, strict=True)
    ]
    assert found(_index(metric, IndexKind.FLAT, vectors).search(queries, ks)) == expected


@pytest.mark.parametrize("k", [1, 5, 12, 39])
def test_ties_at_the_cut_are_won_by_the_first_to_come(
    metric: Metric, kind: IndexKind, k: int
) -> None:
    # Far more copies than a first fetch takes, and FAISS breaks ties by heap position.
    index = _index(metric, kind, np.ones((300, 4), dtype=np.float32))
    expected = [str(number) for number in range(k)]
    for row in index.search(np.ones((3, 4)), k):
        assert [hit.document.id for hit in row] == expected


@pytest.mark.usefixtures("blas_in_batches")
def test_the_order_survives_float32_sums_that_cancel(found: Maker) -> None:
    # Far from the origin |q|^2 - 2qx + |x|^2, which FAISS computes in batches, loses everything
    # that tells these vectors apart.
    random = np.random.default_rng(0)
    vectors = (1000 + random.standard_normal((500, 64))).astype(np.float32)
    queries = (1000 + random.standard_normal((30, 64))).astype(np.float32)
    flat = faiss.IndexFlatL2(64)
    flat.add(vectors)
    raw = flat.search(queries, 10)[1]
    expected = np.argsort(
        [((vectors.astype(float) - query.astype(float)) ** 2).sum(1) for query in queries], axis=1
    )[:, :10]
    assert (raw != expected).any(), "FAISS alone is right: this test tests nothing"
    rows = _index(Metric.L2, IndexKind.FLAT, vectors).search(queries, 10)
    assert [[int(hit.document.id) for hit in row] for row in rows] == expected.tolist()


def test_an_ordinary_search_fetches_once(metric: Metric, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    vectors = random.standard_normal((2000, 64)).astype(np.float32)
    index, counts = _index(metric, IndexKind.FLAT, vectors), list[int]()
    fetch = FlatVectors.fetch

    def record(self: FlatVectors, queries: Any, count: int, scope: Any) -> Any:
        counts.append(count)
        return fetch(self, queries, count, scope)

    monkeypatch.setattr(FlatVectors, "fetch", record)
    index.search(random.standard_normal((30, 64)), 10)
    assert len(counts) == 1
    assert counts[0] < 20


def test_only_the_unsettled_queries_of_a_batch_fetch_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vectors = np.eye(200, dtype=np.float32)
    vectors[100:] = vectors[0]
    index = _index(Metric.INNER_PRODUCT, IndexKind.FLAT, vectors)
    sizes: list[int] = []
    fetch = FlatVectors.fetch

    def record(self: FlatVectors, queries: Any, *rest: Any) -> Any:
        sizes.append(len(queries))
        return fetch(self, queries, *rest)

    monkeypatch.setattr(FlatVectors, "fetch", record)
    queries = np.vstack([vectors[0], np.arange(200, dtype=np.float32)])
    tied, ranked = index.search(queries, 3)
    assert [hit.document.id for hit in tied] == ["0", "100", "101"]
    assert [hit.document.id for hit in ranked] == ["99", "98", "97"]
    assert sizes[0] == 2
    assert set(sizes[1:]) == {1}


def test_clusters_that_hold_too_few_are_made_up_for(metric: Metric, make_vectors: Maker) -> None:
    index = _index(metric, IndexKind.IVF, make_vectors(100))
    for row in index.search(make_vectors(20, seed=1), 90, nprobe=1):
        assert len({hit.document.id for hit in row}) == 90

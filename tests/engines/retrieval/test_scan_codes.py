"""Vectors are encoded whole, in an order of the codes' own, and bad ones are refused by name."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from rag_accel.engines.retrieval.scan import integer_product
from rag_accel.engines.retrieval.scan.codes import (
    MAX_CODE_DIMENSION,
    ClusterCodes,
    encode_clusters,
)
from rag_accel.engines.retrieval.scan.integer_product import (
    EXACT_PART,
    by_floats,
    exact_product,
)
from rag_accel.engines.retrieval.scan.neighbours import order_by_neighbourhood
from rag_accel.errors import ConfigError, EngineOutputError


def clustered(seed: int, sizes: list[int], dimension: int) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(seed)
    offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    vectors = random.standard_normal((int(offsets[-1]), dimension)).astype(np.float32)
    return vectors, offsets, random.permutation(len(vectors))


def rows_of(codes: ClusterCodes, cluster: int) -> Any:
    place = codes.places[cluster]
    return np.arange(codes.starts[place], codes.starts[place + 1])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    dimension=st.integers(1, 20),
)
def test_each_clusters_codes_are_those_of_its_vectors(
    seed: int, sizes: list[int], dimension: int
) -> None:
    vectors, offsets, labels = clustered(seed, sizes, dimension)
    codes = encode_clusters(vectors, offsets, labels)
    assert codes.num_clusters == len(sizes)
    for cluster, (start, stop) in enumerate(itertools.pairwise(offsets)):
        rows = rows_of(codes, cluster)
        assert (codes.places_of(rows) == codes.places[cluster]).all()
        sources = rows + codes.shifts[codes.places_of(rows)]
        assert sources.tolist() == list(range(start, stop))
        shown = codes.rows.scales[rows, None] * codes.rows.codes[rows]
        steps = np.abs(vectors[start:stop]).max(axis=1, initial=0) / 127
        assert (np.abs(shown - vectors[start:stop]) <= 0.501 * steps[:, None]).all()
        assert (codes.rows.error_norms[rows] <= codes.max_errors[codes.places[cluster]]).all()
        assert (codes.rows.code_norms[rows] <= codes.max_lengths[codes.places[cluster]]).all()


def test_the_memory_held_is_what_the_module_says() -> None:
    codes = encode_clusters(*clustered(0, [300] * 4, 64))
    assert codes.nbytes <= 1200 * (64 + 20) + 50 * 4


def test_neighbours_are_stored_beside_each_other() -> None:
    # Eight groups of eight points, in random order.
    random = np.random.default_rng(0)
    groups = random.permutation(np.repeat(np.arange(8), 8))
    centres = 10 * random.standard_normal((8, 16))
    points = (centres[groups] + random.standard_normal((64, 16))).astype(np.float32)
    order = order_by_neighbourhood(points)
    assert sorted(order.tolist()) == list(range(64))
    changes = np.count_nonzero(np.diff(groups[order]))
    assert changes < np.count_nonzero(np.diff(groups)) / 3


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_points_that_are_all_equal_have_an_order(count: int) -> None:
    order = order_by_neighbourhood(np.ones((count, 3), dtype=np.float32))
    assert sorted(order.tolist()) == list(range(count))


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda v, o, n: (v[0], o, n), "vectors"),
        (lambda v, o, n: (v[:, :0], o, n), "vectors"),
        (lambda v, o, n: (v, o[:-1], n), "offsets"),
        (lambda v, o, n: (v, o[::-1], n), "offsets"),
        (lambda v, o, n: (v, o[:0], n), "offsets"),
        (lambda v, o, n: (v, o + 0.5, n), "offsets"),
        (lambda v, o, n: (v, [0, 4, 3, 5], n), "offsets"),
        (lambda v, o, n: (v, [-1, 2, 3, 5], n), "offsets"),
        (lambda v, o, n: (v, o, n[:-1]), "labels"),
        (lambda v, o, n: (v, o, -n), "labels"),
        (lambda v, o, n: (v, o, n.astype(float)), "labels"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(
    change: Callable[..., Any], where: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        encode_clusters(*change(*clustered(0, [2, 0, 3], 4)))
    assert caught.value.where == where


def test_rows_whose_products_could_overflow_are_refused() -> None:
    row = np.zeros((1, MAX_CODE_DIMENSION + 1), dtype=np.float32)
    with pytest.raises(ConfigError, match="cannot be encoded"):
        encode_clusters(row, [0, 1], [0])


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e19])
def test_a_vector_that_cannot_be_compared_is_named(value: float) -> None:
    vectors, offsets, labels = clustered(0, [2, 0, 3], 4)
    vectors[3, 1] = value
    with pytest.raises(EngineOutputError) as caught:
        encode_clusters(vectors, offsets, labels)
    assert caught.value.where == "vectors[3]"


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 40),
    columns=st.integers(1, 70),
    dimension=st.integers(1, 2 * EXACT_PART + 5),
    is_extreme=st.booleans(),
)
def test_both_products_are_exact(
    seed: int, rows: int, columns: int, dimension: int, is_extreme: bool
) -> None:
    random = np.random.default_rng(seed)
    low = 127 if is_extreme else -127
    left, right = (
        random.integers(low, 128, (count, dimension)).astype(np.int8) for count in (rows, columns)
    )
    expected = left.astype(np.float64) @ right.astype(np.float64).T  # exact below 2**53
    assert np.array_equal(exact_product()(left, right), expected)
    assert np.array_equal(by_floats(left, right), expected)


def test_a_product_that_saturates_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    def saturating(left: Any, right: Any) -> Any:
        pairs = left.astype(np.int32)[:, None] * right.astype(np.int32)
        return np.clip(pairs.sum(axis=-1), -(2**15), 2**15 - 1)

    exact_product.cache_clear()
    monkeypatch.setattr(integer_product, "_by_bytes", saturating)
    try:
        assert exact_product() is by_floats
    finally:
        exact_product.cache_clear()


def test_a_torch_without_such_a_product_is_served_by_floats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.delattr(torch, "_int_mm")
    exact_product.cache_clear()
    try:
        assert exact_product() is by_floats
    finally:
        exact_product.cache_clear()

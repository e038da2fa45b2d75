"""Clusters are read in another order, and the same results are found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_accel.engines.retrieval.vectors.cluster_scans import ClusterScan, ScanPiece
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors
from rag_accel.engines.retrieval.vectors.read_order import (
    MOST_LABELS,
    NEAREST_FIRST,
    FollowedSearch,
    LastSearch,
    Order,
    SearchHistory,
    read_order,
    use_order,
)
from rag_accel.engines.retrieval.vectors.spec import IndexKind, IndexSpec, Metric, Vectors
from rag_accel.engines.retrieval.vectors.vectors import (
    NO_LABEL,
    Labels,
    SearchScope,
)

COUNT, DIMENSION, CLUSTERS = 500, 8, 20
ORDERS: tuple[Order, ...] = ("mixed", "paper", "centroid")


def numbers(*values: int) -> Labels:
    return np.asarray(values, dtype=np.int64)


def found(*clusters: int, searched: Labels | None = None, version: int = 1) -> LastSearch:
    labels = np.arange(len(clusters), dtype=np.int64)
    return LastSearch(
        version, labels, numbers(*clusters), numbers() if searched is None else searched
    )


@settings(max_examples=60, deadline=None)
@given(
    clusters=st.lists(st.integers(0, 40), unique=True, max_size=30),
    held=st.lists(st.integers(0, 50), max_size=20),
    searched=st.lists(st.integers(0, 50), unique=True, max_size=30),
    order=st.sampled_from(ORDERS),
    seeded=st.integers(0, 9),
)
def test_an_order_is_a_permutation(
    clusters: list[int], held: list[int], searched: list[int], order: Order, seeded: int
) -> None:
    scores = np.random.default_rng(seeded).integers(0, 4, len(clusters)).astype(np.float32)
    last = found(*held, searched=numbers(*searched))
    places = read_order(order, numbers(*clusters), scores, last)
    assert sorted(places.tolist()) == list(range(len(clusters)))


def test_the_orders_differ_as_they_are_described() -> None:
    clusters = np.arange(10, 20)
    scores = -np.arange(10, dtype=np.float32)  # the nearest first
    last = found(18, 11, 16, 18, 99, searched=numbers(15, 18, 19))

    def ordered(order: Order, last: LastSearch | None = last) -> list[int]:
        return clusters[read_order(order, clusters, scores, last)].tolist()

    assert NEAREST_FIRST == 4
    assert ordered("mixed") == [10, 11, 12, 13, 18, 16, 14, 15, 17, 19]
    assert ordered("paper") == [11, 16, 18, 15, 19, 10, 12, 13, 14, 17]
    assert ordered("centroid") == clusters.tolist()
    assert ordered("mixed", None) == clusters.tolist()


def test_a_history_holds_the_newest_results_of_one_version() -> None:
    history = SearchHistory(most_requests=2)
    history.add("a", "r", LastSearch(1, numbers(1, 2, NO_LABEL), numbers(5, 6, 0), numbers(5)))
    history.add("a", "r", LastSearch(1, numbers(3, 1), numbers(7, 5), numbers(7)))
    last = history.get("a", "r", 1)
    assert last is not None
    assert (last.labels.tolist(), last.clusters.tolist()) == ([3, 1, 2], [7, 5, 6])
    assert history.get("a", "r", 2) is None, "the index has changed"
    assert history.get("b", "r", 1) is None, "another tenant"
    history.add("a", "r", found(8, version=2))
    renewed = history.get("a", "r", 2)
    assert renewed is not None
    assert renewed.labels.tolist() == [0]
    history.add("a", "s", found(*range(30)))
    capped = history.get("a", "s", 1)
    assert capped is not None
    assert len(capped.labels) == MOST_LABELS
    history.add("a", "t", found(1))
    assert len(history) == 2
    assert history.get("a", "r", 2) is None


@pytest.fixture(params=list(Metric), scope="module")
def indexed(request: pytest.FixtureRequest) -> tuple[IvfVectors, Vectors]:
    vectors = np.random.default_rng(5).standard_normal((COUNT, DIMENSION)).astype(np.float32)
    vectors[40:60] = vectors[40]  # duplicates
    spec = IndexSpec(
        DIMENSION, request.param, IndexKind.IVF, num_clusters=CLUSTERS, nprobe=9, train_size=20
    )
    return IvfVectors.train(spec, np.arange(COUNT), vectors), vectors


def read(index: IvfVectors, scan: ClusterScan, size: int) -> None:
    while not scan.is_over:
        index.advance([ScanPiece(scan, scan.position, scan.until(size))], 2)


@settings(max_examples=40, deadline=None)
@given(
    row=st.integers(0, COUNT - 1),
    before=st.integers(0, COUNT - 1),
    order=st.sampled_from(ORDERS),
    size=st.integers(1, 200),
)
def test_a_scan_in_another_order_finds_the_same(
    indexed: tuple[IvfVectors, Vectors], row: int, before: int, order: Order, size: int
) -> None:
    index, vectors = indexed
    scope = SearchScope(COUNT)
    earlier, plain, scan = index.begin(vectors[[before, row, row]], 12, scope)
    read(index, earlier, COUNT)
    read(index, plain, COUNT)
    last = LastSearch(1, earlier.labels, index.clusters_of(earlier.labels), earlier.clusters)
    use_order(order, scan, index.metric, last)
    assert scan.position == 0
    assert sorted(scan.clusters.tolist()) == sorted(plain.clusters.tolist())
    clusters = index.clusters_of(plain.labels)
    searched = FollowedSearch(last, scan, plain.labels, clusters)
    share = searched.share_until_final(order, index.metric)
    read(index, scan, size)
    assert np.array_equal(np.sort(scan.scores), np.sort(plain.scores))
    distinct = plain.scores[plain.scores > plain.scores[-1]]
    assert set(scan.labels[: len(distinct)].tolist()) == set(plain.labels[: len(distinct)].tolist())
    (again,) = index.begin(vectors[[row]], 12, scope)
    use_order(order, again, index.metric, last)
    read_until(index, again, share)
    assert set(distinct.tolist()) <= set(again.scores.tolist())


def read_until(index: IvfVectors, scan: ClusterScan, share: float) -> None:
    behind = [scan.vectors_in(0, end) for end in range(len(scan.clusters) + 1)]
    end = behind.index(round(share * scan.num_vectors))
    index.advance([ScanPiece(scan, 0, end)], 1)


def test_results_outside_of_a_scan_are_never_final_in_it() -> None:
    zeros = np.zeros(2, np.float32)
    scan = ClusterScan(zeros, 1, numbers(4, 2), zeros, numbers(30, 10))
    for clusters, share in ((numbers(4), 0.75), (numbers(2, 4, 2), 1.0), (numbers(4, 3), 1.0)):
        search = FollowedSearch(found(), scan, clusters, clusters)
        assert search.share_until_final("mixed", Metric.L2) == share

"""A query visits the same clusters alone and in a batch, which compares by a matrix product."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest

from rag_accel.engines.retrieval import Metric
from rag_accel.engines.retrieval.vectors import nearest_clusters
from rag_accel.engines.retrieval.vectors.nearest_clusters import MIN_QUERIES, NearestClusters

CLUSTERS, DIMENSION, NPROBE = 400, 24, 5


@pytest.fixture(autouse=True)
def products_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let some hundred centroids be worth a product."""
    monkeypatch.setattr(nearest_clusters, "MIN_NUMBERS", 1)


def drawn(count: int, seed: int) -> Any:
    random = np.random.default_rng(seed)
    return random.standard_normal((count, DIMENSION)).astype(np.float32)


def alone(found: NearestClusters, queries: Any) -> list[list[int]]:
    rows = (found.of(query[None, :], NPROBE)[0] for query in queries)
    return [sorted(row.tolist()) for row in rows]


@pytest.mark.parametrize("scale", [1.0, 1e-22, 1e15])
@pytest.mark.parametrize("count", [MIN_QUERIES, 300])
def test_a_batch_visits_what_each_of_its_queries_visits_alone(
    metric: Metric, scale: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearest_clusters, "MAX_PRODUCTS", 100 * CLUSTERS)
    clusters = NearestClusters(np.float32(scale) * drawn(CLUSTERS, 0), metric)
    queries = np.float32(scale) * drawn(count, 1)
    visits = clusters.of(queries, NPROBE)
    assert [sorted(row.tolist()) for row in visits] == alone(clusters, queries)


def test_centroids_as_near_as_float32_rounds_are_told_apart_one_by_one(metric: Metric) -> None:
    random = np.random.default_rng(2)
    near = drawn(20, 3)[random.integers(0, 20, CLUSTERS)]
    near *= 1 + np.float32(2**-23) * random.integers(-2, 3, near.shape).astype(np.float32)
    clusters, queries = NearestClusters(near, metric), drawn(200, 4)
    visits = clusters.of(queries, NPROBE)
    assert [sorted(row.tolist()) for row in visits] == alone(clusters, queries)


def test_most_queries_need_the_product_only(metric: Metric) -> None:
    clusters, queries = NearestClusters(drawn(CLUSTERS, 0), metric), drawn(100, 1)
    with mock.patch.object(
        NearestClusters, "_one_by_one", autospec=True, side_effect=NearestClusters._one_by_one
    ) as again:
        clusters.of(queries, NPROBE)
    assert sum(len(call.args[1]) for call in again.call_args_list) < 5


@pytest.mark.parametrize("nprobe", [CLUSTERS - 1, CLUSTERS, 65])
def test_as_many_clusters_are_found_as_are_asked_for(metric: Metric, nprobe: int) -> None:
    clusters = NearestClusters(drawn(CLUSTERS, 0), metric)
    visits = clusters.of(drawn(30, 1), nprobe)
    assert visits.shape == (30, nprobe)
    assert all(len(set(row)) == nprobe for row in visits.tolist())

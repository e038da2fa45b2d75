"""Compare searches by 8-bit lists with the exact search of each query alone, on small indexes."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np

from bench.results import Row
from bench.search_arms import coded_searches, searches_of
from bench.vectors import KINDS, Vectors
from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexKind, IndexSpec, Metric

K = 10
DIMENSION, CLUSTERS, NPROBE, CROWD = 48, 64, 8, 50
EQUAL = "queries_equal"

_logger = logging.getLogger("bench.equal_ids")


def compare_ids(kind: str, num_vectors: int, num_queries: int, rows: list[Row]) -> float:
    """Return the share of queries that find the same alone and in crowds; half are stored ones."""
    same: list[bool] = []
    for seed, metric in enumerate(Metric):
        random = np.random.default_rng(seed)
        draw: Callable[[np.random.Generator, int, int], Vectors] = KINDS[kind]
        vectors = draw(random, num_vectors, DIMENSION)
        count = num_queries // 2
        queries = draw(random, count, DIMENSION)
        queries[::2] = vectors[random.integers(0, len(vectors), len(queries[::2]))]
        same += _same(metric, vectors, queries)
    return share_of("by codes", kind, same, rows)


def share_of(system: str, workload: str, same: list[bool], rows: list[Row]) -> float:
    """Return the share of equal answers, and add it as a row."""
    rows.append(Row(system, workload, EQUAL, float(sum(same)), None, len(same)))
    _logger.info("%s, %s: %d of %d queries equal", system, workload, sum(same), len(same))
    return sum(same) / len(same)


def _same(metric: Metric, vectors: Vectors, queries: Vectors) -> list[bool]:
    clusters = min(CLUSTERS, len(vectors))
    spec = IndexSpec(
        DIMENSION,
        metric,
        IndexKind.IVF,
        num_clusters=clusters,
        nprobe=NPROBE,
        train_size=len(vectors),
    )
    index = DocumentIndex(spec)
    index.add([Document(str(number), "", {}) for number in range(len(vectors))], vectors)
    same: list[bool] = []
    with coded_searches(index) as coded:
        for start in range(0, len(queries), CROWD):
            part = queries[start : start + CROWD]
            alone = [index.search(query[None, :], K)[0] for query in part]
            found = coded.search(searches_of(part, K))
            assert found is not None, "the index has not changed"
            same += [one == other for one, other in zip(alone, found, strict=True)]
    return same

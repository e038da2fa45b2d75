"""The clusters nearest to each query, the same for a query alone and in any batch.

FAISS compares few queries with the centroids one by one, and many by a matrix product, which sums
in another order: a query near the border of two clusters would visit different ones in a batch than
alone. The comparison one by one decides. A product is used where it is the faster, and
believed only where the last cluster chosen and the first one left out differ by more than two sums
in float32 can; the others of its queries are compared one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.vectors.spec import Metric, Vectors, norms
from rag_accel.engines.retrieval.vectors.vectors import (
    SMALLEST_NORMAL,
    UNIT_ROUNDOFF,
    Scores,
    faiss_metric,
    load_faiss,
)

MIN_QUERIES = 16  # below, comparing one by one was as fast (4000 centroids of 256 numbers)
MIN_NUMBERS = 1 << 18  # of the centroids, for the same reason
MAX_HEAPED = 64  # clusters to find from which on picking them takes as long as comparing
MAX_PRODUCTS = 1 << 20  # numbers held at once


class NearestClusters:
    """The centroids that queries are compared with. Reading only: concurrent calls are safe.

    Args:
        centroids: ``[clusters, dim]``; copied, for the product.
        metric: how vectors are compared.
    """

    def __init__(self, centroids: Vectors, metric: Metric) -> None:
        self._faiss = load_faiss()
        self.quantizer = self._faiss.IndexFlat(
            centroids.shape[1], faiss_metric(self._faiss, metric)
        )
        self.quantizer.add(centroids)
        self._is_product = metric is Metric.INNER_PRODUCT
        lengths = norms(centroids)
        self._longest = float(lengths.max(initial=0.0))
        self._shape = centroids.shape
        self._product = self._linear(centroids, lengths) if centroids.size >= MIN_NUMBERS else None

    def of(self, queries: Vectors, nprobe: int) -> Labels:
        """Return the ``nprobe`` nearest of the clusters for each of ``queries: [n, dim]``."""
        is_worth = len(queries) >= MIN_QUERIES and nprobe <= min(MAX_HEAPED, self._shape[0] - 1)
        if self._product is None or not is_worth:
            return self._one_by_one(queries, nprobe)
        step = max(MIN_QUERIES, MAX_PRODUCTS // self._shape[0])
        starts = range(0, len(queries), step)
        return _joined([self._by_product(queries[at : at + step], nprobe) for at in starts])

    def _one_by_one(self, queries: Vectors, nprobe: int) -> Labels:
        most = max(1, self._faiss.cvar.distance_compute_blas_threshold - 1)
        starts = range(0, len(queries), most)
        return _joined([self.quantizer.search(queries[at : at + most], nprobe)[1] for at in starts])

    def _by_product(self, queries: Vectors, nprobe: int) -> Labels:
        scores, clusters = self._largest(queries, nprobe + 1)
        gap = scores[:, nprobe - 1].astype(np.float64) - scores[:, nprobe]
        nearest = np.ascontiguousarray(clusters[:, :nprobe])
        # Each of the two scores may be off by the slack here, and by as much where one compares.
        doubtful = np.flatnonzero(~(gap > 4 * self._slack(queries)))
        if len(doubtful):
            nearest[doubtful] = self._one_by_one(queries[doubtful], nprobe)
        return nearest

    def _largest(self, queries: Vectors, count: int) -> tuple[Scores, Labels]:
        """Return the highest scores by the product and their clusters, highest first."""
        products = np.empty((len(queries), self._shape[0]), dtype=np.float32)
        scores = np.empty((len(queries), count), dtype=np.float32)
        clusters = np.empty((len(queries), count), dtype=np.int64)
        pointer = self._faiss.swig_ptr
        assert self._product is not None, "centroids too few for a product"
        self._product.apply_noalloc(len(queries), pointer(queries), pointer(products))
        heap = self._faiss.float_minheap_array_t()
        heap.nh, heap.k = scores.shape
        heap.val, heap.ids = pointer(scores), pointer(clusters)
        heap.heapify()
        heap.addn(self._shape[0], pointer(products))
        heap.reorder()
        return scores, clusters

    def _slack(self, queries: Vectors) -> Any:
        """Bound the error of a score, ``[n]``: of ``q.c``, or of ``q.c - c.c / 2`` for L2.

        The latter is half a squared distance but for a term that all clusters have in common, so
        the bound holds for half of FAISS's distance too (``nearest._slack`` says why).
        """
        dimension = self._shape[1]
        lengths = norms(queries)
        size = lengths * self._longest
        if not self._is_product:
            size = np.square(lengths + self._longest)
        return (dimension + 8) * UNIT_ROUNDOFF * size + dimension * SMALLEST_NORMAL

    def _linear(self, centroids: Vectors, lengths: Any) -> Any:
        """Return FAISS's product with the centroids, on the threads that its scans compute on."""
        clusters, dimension = centroids.shape
        linear = self._faiss.LinearTransform(dimension, clusters, not self._is_product)
        self._faiss.copy_array_to_vector(np.ascontiguousarray(centroids).ravel(), linear.A)
        if not self._is_product:
            halves = (-np.square(lengths) / 2).astype(np.float32)
            self._faiss.copy_array_to_vector(halves, linear.b)
        linear.is_trained = True
        return linear


def _joined(parts: list[Labels]) -> Labels:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)

"""Scan given clusters of a FAISS IVF index, sharing threads as suits the number of queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rag_accel.engines.retrieval.checks import Vectors
from rag_accel.engines.retrieval.documents import Labels
from rag_accel.engines.retrieval.index_spec import Metric
from rag_accel.engines.retrieval.vectors import Scores, higher_is_nearer, load_faiss

_QUERIES_PER_THREAD = 4  # from which on threads share queries, not the clusters of each
_MIN_SHARED = 1 << 19  # numbers a query reads for which waking threads pays: some 0.1 ms
_OVER_CLUSTERS, _OVER_QUERIES = 1, 3  # FAISS's numbers; its default leaves a call on one thread


class ClusterLists:
    """Hold a FAISS IVF index and scan its lists. Reading only: concurrent scans are safe.

    Args:
        make: returns an empty index; called twice.
        metric: of both.
    """

    def __init__(self, make: Callable[[], Any], metric: Metric) -> None:
        self._faiss = load_faiss()
        self._metric = metric
        self.index = make()
        self.index.parallel_mode = _OVER_QUERIES
        # A second face of the same lists: how a scan shares its threads is an attribute of a FAISS
        # index, and other threads may be scanning.
        self._sliced = make()
        self._sliced.parallel_mode = _OVER_CLUSTERS
        self._sliced.replace_invlists(self.index.invlists, False)

    def scan(
        self,
        queries: Vectors,
        count: int,
        clusters: Labels,
        selector: Any,
        sizes: Labels,
        coarse: Scores | None = None,
    ) -> tuple[Scores, Labels]:
        """Return scores (higher is nearer) and labels, ``[n, count]``, best first.

        Threads wait for each other once for each query where they share its clusters, once for
        each call where they share the queries: the former only pays for few queries that read much.

        Args:
            queries: ``[n, dim]``.
            count: how many to find; a row that runs out ends with ``NO_LABEL``.
            clusters: ``[n, m]``, where -1 stands for none.
            selector: FAISS's; what it does not select is skipped.
            sizes: vectors in each cluster.
            coarse: ``[n, m]``, scores of the centroids; where they are not part of a score, none.
        """
        if coarse is None:
            coarse = np.zeros(clusters.shape, dtype=np.float32)
        threads = self._faiss.omp_get_max_threads()
        if threads == 1:
            return self._call(self.index, queries, count, clusters, selector, coarse)
        work = np.where(clusters >= 0, sizes[clusters], 0).sum(axis=1)
        if len(queries) < _QUERIES_PER_THREAD * threads:
            is_long = work.sum() * queries.shape[1] >= len(queries) * _MIN_SHARED
            chosen = self._sliced if is_long else self.index
            return self._call(chosen, queries, count, clusters, selector, coarse)
        order = _balanced(work, threads)
        found = self._call(
            self.index, queries[order], count, clusters[order], selector, coarse[order]
        )
        place = np.argsort(order)
        return found[0][place], found[1][place]

    def _call(
        self,
        index: Any,
        queries: Vectors,
        count: int,
        clusters: Labels,
        selector: Any,
        coarse: Scores,
    ) -> tuple[Scores, Labels]:
        # The raw call takes nprobe as a parameter; the wrapped one reads it from the index, which
        # concurrent searches share.
        num_queries, nprobe = clusters.shape
        scores = np.empty((num_queries, count), dtype=np.float32)
        labels = np.empty((num_queries, count), dtype=np.int64)
        arrays = (clusters, coarse, scores, labels)
        index.search_preassigned_c(
            num_queries,
            self._faiss.swig_ptr(queries),
            count,
            *(self._faiss.swig_ptr(array) for array in arrays),
            False,
            self._faiss.SearchParametersIVF(nprobe=nprobe, sel=selector),
        )
        return higher_is_nearer(self._metric, scores), labels


def _balanced(work: Labels, threads: int) -> Labels:
    """Return an order of rows whose ``threads`` equal parts hold about the same work.

    FAISS gives each thread one part. The heaviest rows are dealt forth and back among the parts.
    """
    turn, part = np.divmod(np.arange(len(work)), threads)
    part = np.where(turn % 2, threads - 1 - part, part)
    return np.argsort(-work, kind="stable")[np.argsort(part, kind="stable")]

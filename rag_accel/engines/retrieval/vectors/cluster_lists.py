"""Scans of given clusters of a FAISS IVF index, on threads as suits the number of queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.vectors.cluster_scans import (
    LEAST_SHARE,
    ClusterScan,
    ScanPiece,
    advance,
)
from rag_accel.engines.retrieval.vectors.spec import Metric, Vectors
from rag_accel.engines.retrieval.vectors.vectors import Scores, higher_is_nearer, load_faiss

_QUERIES_PER_THREAD = 4  # from which on FAISS's threads share the queries, and as fast
_CACHE_LINE = 64  # bytes; FAISS reads as many at once, and takes longer where they lie in two
_MOST_TRIED = 256  # of 307 dimensions from 1 to 4,096 one needed 66, the average 8
_OVER_QUERIES = 3  # FAISS's number; its default leaves a call on one thread


class ClusterLists:
    """A FAISS IVF index whose lists can be scanned. Reading only: concurrent scans are safe.

    Args:
        index: an empty one.
        metric: of it.
    """

    def __init__(self, index: Any, metric: Metric) -> None:
        self._faiss = load_faiss()
        self._metric = metric
        self.index = index
        index.parallel_mode = _OVER_QUERIES

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

        FAISS's threads share the queries of a call. Of few that read much, threads of ours share
        the clusters.

        Args:
            queries: ``[n, dim]``.
            count: how many to find; a row that runs out ends with ``NO_LABEL``.
            clusters: ``[n, m]``, where -1 stands for none.
            selector: FAISS's; other vectors are skipped.
            sizes: vectors in each cluster.
            coarse: ``[n, m]``, scores of the centroids; where they are not part of a score, none.
        """
        if coarse is None:
            coarse = np.zeros(clusters.shape, dtype=np.float32)
        threads = self._faiss.omp_get_max_threads()
        if threads > 1 and len(queries) < _QUERIES_PER_THREAD * threads:
            vectors = np.where(clusters < 0, 0, sizes[clusters])
            if int(vectors.sum()) * queries.shape[1] >= 2 * LEAST_SHARE:
                rows = zip(queries, clusters, coarse, vectors, strict=True)
                scans = [
                    ClusterScan(query, count, mine, numbers, counts, selector)
                    for query, mine, numbers, counts in rows
                ]
                advance(self, [ScanPiece(scan, 0, len(scan.clusters)) for scan in scans], threads)
                return np.stack([s.scores for s in scans]), np.stack([s.labels for s in scans])
        return self.read(queries, count, clusters, coarse, selector)

    def read(
        self, queries: Vectors, count: int, clusters: Labels, coarse: Scores, selector: Any
    ) -> tuple[Scores, Labels]:
        scores, labels = read_lists(self.index, queries, count, clusters, coarse, selector)
        return higher_is_nearer(self._metric, scores), labels


def read_lists(
    index: Any, queries: Vectors, count: int, clusters: Labels, coarse: Scores, selector: Any
) -> tuple[Scores, Labels]:
    """Return FAISS's numbers and labels of the nearest in given clusters of an IVF index.

    The raw call takes nprobe as a parameter; the wrapped one reads it from the index, which
    concurrent searches share. Nothing of the index is changed.
    """
    faiss = load_faiss()
    num_queries, nprobe = clusters.shape
    queries = _aligned(queries)
    scores = np.empty((num_queries, count), dtype=np.float32)
    labels = np.empty((num_queries, count), dtype=np.int64)
    arrays = (clusters, coarse, scores, labels)
    index.search_preassigned_c(
        num_queries,
        faiss.swig_ptr(queries),
        count,
        *(faiss.swig_ptr(array) for array in arrays),
        False,
        faiss.SearchParametersIVF(nprobe=nprobe, sel=selector),
    )
    return scores, labels


def made_aligned(make: Callable[[], Any]) -> Any:
    """Return an 8-bit index whose decoder's numbers begin where a cache line does, if one comes.

    FAISS reads them for each code: a scan took a fifth longer where each read met two lines. Where
    they lie is chance, one in four, and cannot be chosen.
    """
    index, tried = make(), list[tuple[Any, Any]]()
    while int(index.sq.trained.data()) % _CACHE_LINE and len(tried) < _MOST_TRIED:
        # Tried indexes stay alive meanwhile, each with another gap, so that new addresses come.
        gap = load_faiss().Float32Vector()
        gap.resize(4 * (1 + len(tried)))
        tried.append((index, gap))
        index = make()
    return index


def _aligned(queries: Vectors) -> Vectors:
    """Return queries that begin where a cache line does."""
    if queries.ctypes.data % _CACHE_LINE == 0:
        return queries
    room = np.empty(queries.nbytes + _CACHE_LINE, dtype=np.uint8)
    start = -room.ctypes.data % _CACHE_LINE
    found = room[start : start + queries.nbytes].view(np.float32).reshape(queries.shape)
    found[:] = queries
    return found

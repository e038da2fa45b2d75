"""Vectors in clusters (FAISS IVF), where a search looks at the nearest clusters only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.vectors.cluster_lists import ClusterLists, made_aligned
from rag_accel.engines.retrieval.vectors.cluster_scans import ClusterScan, ScanPiece, advance
from rag_accel.engines.retrieval.vectors.inverted_list import InvertedList
from rag_accel.engines.retrieval.vectors.nearest_clusters import NearestClusters
from rag_accel.engines.retrieval.vectors.spec import IndexSpec, Metric, Vectors, norms
from rag_accel.engines.retrieval.vectors.vectors import (
    Rows,
    Scores,
    SearchScope,
    faiss_metric,
    higher_is_nearer,
    load_faiss,
)

KMEANS_ROUNDS = 10
KMEANS_SEED = 1234
MIN_VECTORS_PER_CLUSTER = 39  # below, FAISS warns that clusters are too thin
RANGED_AT_ONCE = 1 << 20  # numbers held at once while ranges are measured


class IvfVectors:
    """An index that compares within the clusters nearest to the query (FAISS ``IndexIVFFlat``).

    With ``codes`` an ``IndexIVFScalarQuantizer`` of the same clusters stands beside it, whose
    candidates are scored again from the vectors. Not to be changed are ``centroids``, ``ranges``,
    and FAISS's index of the centroids, ``quantizer``.

    Args:
        spec: dimension, metric, ``nprobe``, codes.
        centroids: ``[num_clusters, dim]``.
        ranges: ``[2, dim]``, least and width of each number of a vector less its centroid, which
            the codes divide; None if there are no codes.
    """

    def __init__(self, spec: IndexSpec, centroids: Vectors, ranges: Vectors | None = None) -> None:
        self._faiss = load_faiss()
        self._nearest = NearestClusters(centroids, spec.metric)
        self.quantizer = self._nearest.quantizer
        self._lists = self._cluster_lists(spec, len(centroids), None)
        self.ranges = ranges
        self._coded: ClusterLists | None = None
        if ranges is not None:
            self._coded = self._cluster_lists(spec, len(centroids), ranges)
        self.refine = 0 if ranges is None else spec.refine
        self.centroids = centroids
        self._default_nprobe = spec.nprobe or math.ceil(len(centroids) / 8)
        self.metric = spec.metric
        self._sizes: Labels | None = np.zeros(len(centroids), dtype=np.int64)
        # the lists of a growing cluster, the cluster, and its true size
        self._grown: tuple[Any, int, int] | None = None
        self.max_norm = 0.0

    @classmethod
    def train(cls, spec: IndexSpec, labels: Labels, vectors: Vectors) -> IvfVectors:
        """Find the clusters of these vectors by k-means, then hold the vectors."""
        trained = cls(spec, _train_centroids(spec, vectors))
        rows = trained.rows(labels, vectors)
        if spec.codes is not None:
            ranges = code_ranges(trained.centroids, rows.vectors, rows.clusters)
            trained = cls(spec, trained.centroids, ranges)
        trained.add(rows)
        return trained

    @property
    def dimension(self) -> int:
        return self.centroids.shape[1]

    @property
    def faiss_index(self) -> Any:
        """Return FAISS's index of the vectors; not to be changed."""
        return self._lists.index

    @property
    def num_clusters(self) -> int:
        """Return how many clusters there are."""
        return len(self.centroids)

    def __len__(self) -> int:
        return int(self.faiss_index.ntotal)

    def rows(self, labels: Labels, vectors: Vectors) -> Rows:
        """Assign each vector to the cluster nearest to it."""
        if not len(labels):
            return Rows(labels, vectors, np.empty(0, dtype=np.int64))
        return Rows(labels, vectors, self.quantizer.search(vectors, 1)[1][:, 0])

    def reserve(self, rows: Rows) -> None:
        """Let the lists of clusters grow and shrink: they keep the memory.

        Without memory FAISS would stop in the middle, some vectors in lists and known nowhere.
        """
        if not len(rows):
            return
        clusters, counts = np.unique(rows.clusters, return_counts=True)
        for index in self._indexes():
            lists = index.invlists
            for cluster, count in zip(clusters.tolist(), counts.tolist(), strict=True):
                size = lists.list_size(cluster)
                self._grown = lists, cluster, size
                lists.resize(cluster, size + count)
                lists.resize(cluster, size)
        self._grown = None

    def add(self, rows: Rows) -> None:
        """Put each vector into its cluster."""
        if not len(rows):
            return
        self.reserve(rows)
        self.max_norm = max(self.max_norm, float(norms(rows.vectors).max()))
        labels, clusters = (
            np.ascontiguousarray(numbers, dtype=np.int64)
            for numbers in (rows.labels, rows.clusters)
        )
        sizes, self._sizes = self._sizes, None
        arrays = tuple(map(self._faiss.swig_ptr, (rows.vectors, labels, clusters)))
        for index in self._indexes():
            index.add_core(len(labels), *arrays)
        if sizes is not None:
            self._sizes = sizes + np.bincount(clusters, minlength=self.num_clusters)

    def replace(self, rows: Rows) -> None:
        """Exchange vectors; each may change its cluster."""
        self.remove(rows.labels)
        self.add(rows)

    def remove(self, labels: Labels) -> None:
        """Remove vectors from their clusters."""
        if self._grown is not None:
            lists, cluster, size = self._grown
            lists.resize(cluster, size)
            self._grown = None
        if len(labels):
            self._sizes = None
            for index in self._indexes():
                index.remove_ids(self._faiss.IDSelectorArray(labels))

    def gather(self, labels: Labels) -> Vectors:
        """Return copies of the vectors of these labels."""
        return self.faiss_index.reconstruct_batch(np.asarray(labels, dtype=np.int64))

    def cluster_sizes(self) -> Labels:
        """Return how many vectors lie in each cluster, ``[num_clusters]``; not to be changed."""
        if self._sizes is None:  # two readers may count at once: both are right
            lists = self.faiss_index.invlists
            sizes = [lists.list_size(cluster) for cluster in range(self.num_clusters)]
            self._sizes = np.asarray(sizes, dtype=np.int64)
        return self._sizes

    def assignments(self) -> tuple[Labels, Labels]:
        """Return all labels, rising, and the cluster each lies in."""
        lists, sizes = self.faiss_index.invlists, self.cluster_sizes().tolist()
        clusters = np.repeat(np.arange(self.num_clusters, dtype=np.int64), sizes)
        labels = np.empty(len(clusters), dtype=np.int64)
        start = 0
        for cluster, size in enumerate(sizes):
            if size:
                view = self._faiss.rev_swig_ptr(lists.get_ids(cluster), size)
                labels[start : start + size] = view
            start += size
        order = np.argsort(labels)
        return labels[order], clusters[order]

    def lists(self) -> Sequence[InvertedList]:
        """Return the list of each cluster; not to be changed."""
        held, made = self.faiss_index.invlists, list[InvertedList]()
        for cluster, size in enumerate(self.cluster_sizes().tolist()):
            vectors = np.empty((size, self.dimension), dtype=np.float32)
            labels = np.empty(size, dtype=np.int64)
            if size:
                codes = self._faiss.rev_swig_ptr(held.get_codes(cluster), vectors.nbytes)
                vectors[:] = codes.view(np.float32).reshape(vectors.shape)
                labels[:] = self._faiss.rev_swig_ptr(held.get_ids(cluster), size)
            made.append(InvertedList.of(vectors, labels))
        return made

    def clusters_of(self, labels: Labels) -> Labels:
        """Return the cluster that each of these present labels lies in."""
        places = self.faiss_index.direct_map
        found = [self._faiss.lo_listno(places.get(label)) for label in labels.tolist()]
        return np.asarray(found, dtype=np.int64)

    def gap(self, query: Vectors, labels: Labels, score: float) -> float:
        """Return by how much the farthest centroid of the labels' clusters lies behind a score."""
        clusters = self.clusters_of(labels)[None, :]
        centroids = higher_is_nearer(self.metric, self._centroid_scores(query[None, :], clusters))
        return max(0.0, score - float(centroids.min()))

    def num_visited(self, is_filtered: bool, nprobe: int | None) -> int:
        """Return how many clusters a search visits."""
        if nprobe is None:
            nprobe = self.num_clusters if is_filtered else self._default_nprobe
        return min(nprobe, self.num_clusters)

    def _visited(self, queries: Vectors, scope: SearchScope) -> Labels:
        """Return the clusters each query visits, ``[n, visited]``."""
        nprobe = self.num_visited(scope.allowed is not None, scope.nprobe)
        if nprobe < self.num_clusters:
            return self._nearest.of(queries, nprobe)
        return np.tile(np.arange(nprobe, dtype=np.int64), (len(queries), 1))

    def begin(self, queries: Vectors, count: int, scope: SearchScope) -> list[ClusterScan]:
        """Return a scan for each query of ``[n, dim]`` that keeps ``count`` candidates.

        It reads the nearest clusters first, and has in the end found what ``fetch`` finds.
        """
        nprobe = self.num_visited(scope.allowed is not None, scope.nprobe)
        clusters, sizes = self._nearest.of(queries, nprobe), self.cluster_sizes()
        coarse, selector = self._centroid_scores(queries, clusters), self._selector(scope)
        rows = zip(queries, clusters, coarse, strict=True)
        return [
            ClusterScan(query, count, mine, numbers, sizes[mine], selector)
            for query, mine, numbers in rows
        ]

    def advance(self, pieces: Sequence[ScanPiece], threads: int) -> None:
        """Read pieces of scans, on at most so many threads."""
        advance(self._lists, pieces, threads)

    def fetch(self, queries: Vectors, count: int, scope: SearchScope) -> tuple[Scores, Labels]:
        """Scan the clusters nearest to each query."""
        clusters, sizes = self._visited(queries, scope), self.cluster_sizes()
        return self._lists.scan(queries, count, clusters, self._selector(scope), sizes)

    def fetch_coded(
        self, queries: Vectors, count: int, scope: SearchScope
    ) -> tuple[Scores, Labels]:
        """Scan the codes of the same clusters: scores are approximate, labels as ``fetch``."""
        assert self._coded is not None, "an index without codes"
        clusters, sizes, coarse = self._visited(queries, scope), self.cluster_sizes(), None
        if self.metric is Metric.INNER_PRODUCT:  # a code is what a vector adds to its centroid
            coarse = self._centroid_scores(queries, clusters)
        selector = self._selector(scope)
        return self._coded.scan(queries, count, clusters, selector, sizes, coarse)

    def _centroid_scores(self, queries: Vectors, clusters: Labels) -> Scores:
        """Return FAISS's numbers for the centroids of ``clusters: [n, m]``.

        By FAISS: the threads of NumPy's own products would go on spinning during the next scan.
        """
        scores = np.empty(clusters.shape, dtype=np.float32)
        arrays = map(self._faiss.swig_ptr, (scores, clusters))
        count, width = clusters.shape
        self.quantizer.compute_distance_subset(count, self._faiss.swig_ptr(queries), width, *arrays)
        return scores

    def _selector(self, scope: SearchScope) -> Any:
        """Return what makes a scan skip vectors out of scope; None skips none. Costs O(allowed)."""
        return None if scope.allowed is None else self._faiss.IDSelectorBatch(scope.allowed)

    def _indexes(self) -> list[Any]:
        """Return FAISS's indexes, which hold the same labels in the same clusters."""
        return [lists.index for lists in (self._lists, self._coded) if lists is not None]

    def _cluster_lists(
        self, spec: IndexSpec, num_clusters: int, ranges: Vectors | None
    ) -> ClusterLists:
        """Return empty lists of vectors, or of codes where ranges are given."""
        faiss, settings = self._faiss, (self.quantizer, spec.dimension, num_clusters)
        metric = faiss_metric(faiss, spec.metric)

        def make() -> Any:
            if ranges is None:
                index = faiss.IndexIVFFlat(*settings, metric)
            else:
                eight_bits = faiss.ScalarQuantizer.QT_8bit
                index = faiss.IndexIVFScalarQuantizer(*settings, eight_bits, metric, True)
                faiss.copy_array_to_vector(np.ascontiguousarray(ranges).ravel(), index.sq.trained)
            index.is_trained = True
            return index

        index = make() if ranges is None else made_aligned(make)
        lists = ClusterLists(index, spec.metric)
        index.set_direct_map_type(faiss.DirectMap.Hashtable)
        return lists


def own_num_clusters(count: int) -> int:
    """Return how many clusters ``count`` vectors get where no number is given."""
    return max(1, min(round(4 * math.sqrt(count)), count // MIN_VECTORS_PER_CLUSTER))


def code_ranges(centroids: Vectors, vectors: Vectors, clusters: Labels) -> Vectors:
    """Return least and width of each number of ``x - c``, ``[2, dim]``, as FAISS's trainer does."""
    dimension = centroids.shape[1]
    if not len(vectors):
        return np.zeros((2, dimension), dtype=np.float32)
    low = np.full(dimension, np.inf, dtype=np.float32)
    high = -low
    step = max(1, RANGED_AT_ONCE // dimension)
    for start in range(0, len(vectors), step):
        part = slice(start, start + step)
        rest = vectors[part] - centroids[clusters[part]]
        low, high = np.minimum(low, rest.min(axis=0)), np.maximum(high, rest.max(axis=0))
    return np.stack([low, high - low])


def _train_centroids(spec: IndexSpec, vectors: Vectors) -> Vectors:
    faiss = load_faiss()
    count = len(vectors)
    kmeans = faiss.Kmeans(
        spec.dimension,
        min(count, spec.num_clusters or own_num_clusters(count)),
        niter=KMEANS_ROUNDS,
        seed=KMEANS_SEED,
        spherical=spec.metric is Metric.INNER_PRODUCT,
        min_points_per_centroid=1,  # the caller may ask for thin clusters
    )
    kmeans.train(vectors)
    return np.ascontiguousarray(kmeans.centroids, dtype=np.float32)

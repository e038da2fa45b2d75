"""Vectors in clusters (FAISS IVF), where a search looks at the nearest clusters only."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.vectors.cluster_lists import ClusterLists
from rag_accel.engines.retrieval.vectors.nearest_clusters import NearestClusters, Visits
from rag_accel.engines.retrieval.vectors.row_places import RowPlaces
from rag_accel.engines.retrieval.vectors.spec import IndexSpec, Metric, Vectors, norms
from rag_accel.engines.retrieval.vectors.vectors import (
    Rows,
    Scores,
    SearchScope,
    faiss_metric,
    load_faiss,
)

KMEANS_ROUNDS = 10
KMEANS_SEED = 1234
MIN_VECTORS_PER_CLUSTER = 39  # below, FAISS warns that clusters are too thin


class IvfVectors:
    """An index that compares within the clusters nearest to the query (FAISS ``IndexIVFFlat``).

    Not to be changed are ``centroids``, ``[num_clusters, dim]``, and FAISS's indexes: ``quantizer``
    of the centroids, and ``faiss_index`` of the vectors.
    """

    def __init__(self, spec: IndexSpec, centroids: Vectors) -> None:
        self._faiss = load_faiss()
        self._nearest = NearestClusters(centroids, spec.metric)
        self.quantizer = self._nearest.quantizer
        make = _empty_index(self._faiss, spec, centroids, self.quantizer)
        self._lists = ClusterLists(make, spec.metric)
        self.faiss_index = self._lists.index
        self.faiss_index.set_direct_map_type(self._faiss.DirectMap.Hashtable)
        self.centroids = centroids
        self._default_nprobe = spec.nprobe or math.ceil(len(centroids) / 8)
        self.metric = spec.metric
        self._sizes: Labels | None = np.zeros(len(centroids), dtype=np.int64)
        self._places: RowPlaces | None = None
        self._grown: tuple[int, int] | None = None  # a cluster that is growing, and its true size
        self.max_norm = 0.0

    @classmethod
    def train(cls, spec: IndexSpec, labels: Labels, vectors: Vectors) -> IvfVectors:
        """Find the clusters of these vectors by k-means, then hold the vectors."""
        trained = cls(spec, _train_centroids(spec, vectors))
        trained.add(trained.rows(labels, vectors))
        return trained

    @property
    def dimension(self) -> int:
        """Return the length of a vector."""
        return self.centroids.shape[1]

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
        self._places = None  # a list that grows may move
        lists = self.faiss_index.invlists
        clusters, counts = np.unique(rows.clusters, return_counts=True)
        for cluster, count in zip(clusters.tolist(), counts.tolist(), strict=True):
            size = lists.list_size(cluster)
            self._grown = cluster, size
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
        arrays = map(self._faiss.swig_ptr, (rows.vectors, labels, clusters))
        self.faiss_index.add_core(len(labels), *arrays)
        if sizes is not None:
            self._sizes = sizes + np.bincount(clusters, minlength=self.num_clusters)

    def replace(self, rows: Rows) -> None:
        """Exchange vectors; each may change its cluster."""
        self.remove(rows.labels)
        self.add(rows)

    def remove(self, labels: Labels) -> None:
        """Remove vectors from their clusters."""
        self._places = None
        if self._grown is not None:
            self.faiss_index.invlists.resize(*self._grown)
            self._grown = None
        if len(labels):
            self._sizes = None
            self.faiss_index.remove_ids(self._faiss.IDSelectorArray(labels))

    def gather(self, labels: Labels) -> Vectors:
        """Return copies of the vectors of these labels."""
        wanted = np.asarray(labels, dtype=np.int64)
        found = None if self._places is None else self._places.rows(wanted)
        return self.faiss_index.reconstruct_batch(wanted) if found is None else found

    def new_places(self) -> RowPlaces:
        """Return an empty table of places to fill; it is used until a change begins."""
        self._places = RowPlaces(self.dimension)
        return self._places

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

    def cluster_rows(self, cluster: int) -> tuple[Labels, Vectors]:
        """Return the labels ``[n]`` and vectors ``[n, dim]`` of a cluster.

        They are views into FAISS's memory: valid until the next change, and not to be changed.
        """
        lists, dimension = self.faiss_index.invlists, self.faiss_index.d
        size = lists.list_size(cluster)
        if not size:
            return np.empty(0, dtype=np.int64), np.empty((0, dimension), dtype=np.float32)
        labels = self._faiss.rev_swig_ptr(lists.get_ids(cluster), size)
        numbers = self._faiss.rev_swig_ptr(lists.get_codes(cluster), size * dimension * 4)
        return labels, numbers.view(np.float32).reshape(size, dimension)

    def num_visited(self, is_filtered: bool, nprobe: int | None) -> int:
        """Return how many clusters a search visits."""
        if nprobe is None:
            nprobe = self.num_clusters if is_filtered else self._default_nprobe
        return min(nprobe, self.num_clusters)

    def visited(self, queries: Vectors, scope: SearchScope) -> Visits:
        """Return the clusters each query visits, nearest first, ``[n, visited]``.

        Where all are visited they come in the order of their numbers.
        """
        nprobe = self.num_visited(scope.allowed is not None, scope.nprobe)
        if nprobe < self.num_clusters:
            return self._nearest.of(queries, nprobe)
        clusters = np.tile(np.arange(nprobe, dtype=np.int64), (len(queries), 1))
        return Visits(clusters, self.centroid_scores(queries, clusters))

    def centroid_scores(self, queries: Vectors, clusters: Labels) -> Scores:
        """Return FAISS's numbers for the centroids of ``clusters: [n, m]``; any number for -1.

        By FAISS: the threads of NumPy's own products would go on spinning during the next scan.
        """
        scores = np.empty(clusters.shape, dtype=np.float32)
        arrays = map(self._faiss.swig_ptr, (scores, clusters))
        count, width = clusters.shape
        self.quantizer.compute_distance_subset(count, self._faiss.swig_ptr(queries), width, *arrays)
        return scores

    def selector(self, scope: SearchScope) -> Any:
        """Return what makes a scan skip vectors out of scope; None skips none. Costs O(allowed)."""
        return None if scope.allowed is None else self._faiss.IDSelectorBatch(scope.allowed)

    def fetch(self, queries: Vectors, count: int, scope: SearchScope) -> tuple[Scores, Labels]:
        """Scan the clusters nearest to each query."""
        clusters, selector = self.visited(queries, scope).clusters, self.selector(scope)
        return self._lists.scan(queries, count, clusters, selector, self.cluster_sizes())

    def scan(
        self, queries: Vectors, count: int, clusters: Labels, selector: Any
    ) -> tuple[Scores, Labels]:
        """Scan given clusters: ``clusters: [n, m]``, where -1 stands for none.

        Returns scores and labels as ``fetch`` does.
        """
        return self._lists.scan(queries, count, clusters, selector, self.cluster_sizes())


def own_num_clusters(count: int) -> int:
    """Return how many clusters ``count`` vectors get where no number is given."""
    return max(1, min(round(4 * math.sqrt(count)), count // MIN_VECTORS_PER_CLUSTER))


def _empty_index(
    faiss: Any, spec: IndexSpec, centroids: Vectors, quantizer: Any
) -> Callable[[], Any]:
    """Return a factory of indexes over one quantizer of these centroids."""
    metric = faiss_metric(faiss, spec.metric)

    def make() -> Any:
        index = faiss.IndexIVFFlat(quantizer, spec.dimension, len(centroids), metric)
        index.is_trained = True
        return index

    return make


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

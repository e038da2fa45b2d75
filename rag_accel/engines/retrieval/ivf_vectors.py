"""Hold vectors in clusters (FAISS IVF), where a search looks at the nearest clusters only."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rag_accel.engines.retrieval.checks import Vectors, norms
from rag_accel.engines.retrieval.documents import Labels
from rag_accel.engines.retrieval.index_spec import IndexSpec, Metric
from rag_accel.engines.retrieval.vectors import (
    Scope,
    Scores,
    faiss_metric,
    higher_is_nearer,
    load_faiss,
)

KMEANS_ROUNDS = 10
KMEANS_SEED = 1234
_QUERIES_PER_THREAD = 4  # from which on threads share queries, not the clusters of each
MIN_VECTORS_PER_CLUSTER = 39  # below, FAISS warns that clusters are too thin


class IvfVectors:
    """Compare with the vectors of the clusters nearest to the query (FAISS ``IndexIVFFlat``)."""

    def __init__(self, spec: IndexSpec, centroids: Vectors) -> None:
        self._faiss = load_faiss()
        self._quantizer, self._index = _make_ivf(self._faiss, spec, centroids)
        self._sliced = _make_sliced(self._faiss, spec, self._index)
        self._centroids = centroids
        self._default_nprobe = spec.nprobe or math.ceil(len(centroids) / 8)
        self.metric = spec.metric
        self._sizes: Labels | None = np.zeros(len(centroids), dtype=np.int64)
        self.max_norm = 0.0

    @classmethod
    def train(cls, spec: IndexSpec, labels: Labels, vectors: Vectors) -> IvfVectors:
        """Find the clusters of these vectors by k-means, then hold the vectors."""
        trained = cls(spec, _train_centroids(spec, vectors))
        trained.add(labels, vectors)
        return trained

    @property
    def num_clusters(self) -> int:
        """Return how many clusters there are."""
        return len(self._centroids)

    @property
    def centroids(self) -> Vectors:
        """Return the clusters' centres, ``[num_clusters, dim]``; not to be changed."""
        return self._centroids

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def add(self, labels: Labels, vectors: Vectors) -> None:
        """Put each vector into the cluster nearest to it."""
        if len(labels):
            self.add_assigned(labels, vectors, self._quantizer.search(vectors, 1)[1][:, 0])

    def add_assigned(self, labels: Labels, vectors: Vectors, clusters: Labels) -> None:
        """Put each vector into a given cluster, as a stored index recorded it."""
        if not len(labels):
            return
        self.max_norm = max(self.max_norm, float(norms(vectors).max()))
        labels = np.ascontiguousarray(labels, dtype=np.int64)
        clusters = np.ascontiguousarray(clusters, dtype=np.int64)
        pointer = self._faiss.swig_ptr
        self._index.add_core(len(labels), pointer(vectors), pointer(labels), pointer(clusters))
        if self._sizes is not None:
            self._sizes = self._sizes + np.bincount(clusters, minlength=self.num_clusters)

    def replace(self, labels: Labels, vectors: Vectors) -> None:
        """Exchange vectors; each may change its cluster."""
        self.remove(labels)
        self.add(labels, vectors)

    def remove(self, labels: Labels) -> None:
        """Remove vectors from their clusters."""
        if len(labels):
            self._sizes = None
            self._index.remove_ids(self._faiss.IDSelectorArray(labels))

    def gather(self, labels: Labels) -> Vectors:
        """Return copies of the vectors of these labels."""
        return self._index.reconstruct_batch(np.asarray(labels, dtype=np.int64))

    def cluster_sizes(self) -> Labels:
        """Return how many vectors lie in each cluster, ``[num_clusters]``; not to be changed."""
        if self._sizes is None:  # two readers may count at once: both are right
            lists = self._index.invlists
            sizes = [lists.list_size(cluster) for cluster in range(self.num_clusters)]
            self._sizes = np.asarray(sizes, dtype=np.int64)
        return self._sizes

    def assignments(self) -> tuple[Labels, Labels]:
        """Return all labels, rising, and the cluster each lies in."""
        lists, sizes = self._index.invlists, self.cluster_sizes().tolist()
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
        lists, dimension = self._index.invlists, self._index.d
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

    def visited(self, queries: Vectors, scope: Scope) -> Labels:
        """Return the clusters each query visits, nearest first, ``[n, visited]``.

        Where all are visited they come in the order of their numbers.
        """
        nprobe = self.num_visited(scope.allowed is not None, scope.nprobe)
        return self._nearest_clusters(queries, nprobe)

    def selector(self, scope: Scope) -> Any:
        """Return what makes a scan skip vectors out of scope; None skips none. Costs O(allowed)."""
        return None if scope.allowed is None else self._faiss.IDSelectorBatch(scope.allowed)

    def fetch(self, queries: Vectors, count: int, scope: Scope) -> tuple[Scores, Labels]:
        """Scan the clusters nearest to each query."""
        clusters = self.visited(queries, scope)
        return self._scan(self._index, queries, count, clusters, self.selector(scope))

    def scan(
        self, queries: Vectors, count: int, clusters: Labels, selector: Any
    ) -> tuple[Scores, Labels]:
        """Scan given clusters: ``clusters: [n, m]``, where -1 stands for none.

        Returns scores and labels as ``fetch`` does. Threads wait for each other once for each
        query where they share its clusters, once for each call where they share the queries: the
        former only pays for few queries.
        """
        threads = self._faiss.omp_get_max_threads()
        if threads == 1:
            return self._scan(self._index, queries, count, clusters, selector)
        if len(queries) < _QUERIES_PER_THREAD * threads:
            return self._scan(self._sliced, queries, count, clusters, selector)
        sizes = np.where(clusters >= 0, self.cluster_sizes()[clusters], 0).sum(axis=1)
        order = _balanced(sizes, threads)
        found = self._scan(self._index, queries[order], count, clusters[order], selector)
        place = np.argsort(order)
        return found[0][place], found[1][place]

    def _nearest_clusters(self, queries: Vectors, nprobe: int) -> Labels:
        # One query at a time: in a batch the quantizer may sum in another order, and a query near
        # the border of two clusters would visit different ones than it visits alone.
        if nprobe == self.num_clusters:
            return np.tile(np.arange(nprobe, dtype=np.int64), (len(queries), 1))
        return np.concatenate(
            [self._quantizer.search(query[None, :], nprobe)[1] for query in queries]
        )

    def _scan(
        self, index: Any, queries: Vectors, count: int, clusters: Labels, selector: Any
    ) -> tuple[Scores, Labels]:
        # The raw call takes nprobe as a parameter; the wrapped one reads it from the index, which
        # concurrent searches share. Distances to centroids play no part in a flat-coded IVF.
        num_queries, nprobe = clusters.shape
        scores = np.empty((num_queries, count), dtype=np.float32)
        labels = np.empty((num_queries, count), dtype=np.int64)
        unused = np.zeros((num_queries, nprobe), dtype=np.float32)
        arrays = (clusters, unused, scores, labels)
        index.search_preassigned_c(
            num_queries,
            self._faiss.swig_ptr(queries),
            count,
            *(self._faiss.swig_ptr(array) for array in arrays),
            False,
            self._faiss.SearchParametersIVF(nprobe=nprobe, sel=selector),
        )
        return higher_is_nearer(self.metric, scores), labels


def _make_ivf(faiss: Any, spec: IndexSpec, centroids: Vectors) -> tuple[Any, Any]:
    metric = faiss_metric(faiss, spec.metric)
    quantizer = faiss.IndexFlat(spec.dimension, metric)
    quantizer.add(centroids)
    index = faiss.IndexIVFFlat(quantizer, spec.dimension, len(centroids), metric)
    index.is_trained = True
    index.parallel_mode = 3  # over queries; the default leaves a preassigned search on one thread
    index.set_direct_map_type(faiss.DirectMap.Hashtable)
    return quantizer, index


def _balanced(work: Labels, threads: int) -> Labels:
    """Return an order of rows whose ``threads`` equal parts hold about the same work.

    FAISS gives each thread one part. The heaviest rows are dealt forth and back among the parts.
    """
    turn, part = np.divmod(np.arange(len(work)), threads)
    part = np.where(turn % 2, threads - 1 - part, part)
    return np.argsort(-work, kind="stable")[np.argsort(part, kind="stable")]


def _make_sliced(faiss: Any, spec: IndexSpec, index: Any) -> Any:
    # A second face of the same lists: how a search shares its threads is an attribute of a FAISS
    # index, and other threads may be searching it.
    sliced = faiss.IndexIVFFlat(
        index.quantizer, spec.dimension, index.nlist, faiss_metric(faiss, spec.metric)
    )
    sliced.is_trained = True
    sliced.parallel_mode = 1  # over the clusters of a query
    sliced.replace_invlists(index.invlists, False)
    return sliced


def _train_centroids(spec: IndexSpec, vectors: Vectors) -> Vectors:
    faiss = load_faiss()
    count = len(vectors)
    wanted = min(round(4 * math.sqrt(count)), count // MIN_VECTORS_PER_CLUSTER)
    kmeans = faiss.Kmeans(
        spec.dimension,
        min(count, spec.num_clusters or max(1, wanted)),
        niter=KMEANS_ROUNDS,
        seed=KMEANS_SEED,
        spherical=spec.metric is Metric.INNER_PRODUCT,
        min_points_per_centroid=1,  # the caller may ask for thin clusters
    )
    kmeans.train(vectors)
    return np.ascontiguousarray(kmeans.centroids, dtype=np.float32)

"""Vectors in clusters whose lists lie in a file, the most read ones in memory (HedraRAG 4.4).

Lists of the file are mapped and never written: a cluster that changes gets a list in memory, in
place of the file's. Each change, and each exchange of hot clusters, makes another table, so
searches that run read the one that they began with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.vectors.cluster_list import ClusterList, num_bytes
from rag_accel.engines.retrieval.vectors.cluster_scans import ClusterScan
from rag_accel.engines.retrieval.vectors.hot_clusters import HotClusters
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors
from rag_accel.engines.retrieval.vectors.list_table import ListTable
from rag_accel.engines.retrieval.vectors.spec import IndexSpec, Vectors, norms
from rag_accel.engines.retrieval.vectors.vectors import Rows, Scores, SearchScope
from rag_accel.errors import ConfigError
from rag_accel.system.locks import RenewedLock

_ABSENT = -1


class MappedVectors(IvfVectors):
    """An index as ``IvfVectors``, over lists that are mapped from a file.

    Args:
        spec: dimension, metric, ``nprobe``, ``hot_bytes``.
        centroids: ``[num_clusters, dim]``.
        lists: of each cluster, as the file has it.
        clusters: ``[n]``, the cluster of each label.
        max_norm: a length that no vector exceeds.
        check: raises if a cluster's list is not as it was written; asked before it is read.

    Raises:
        ConfigError: ``hot_bytes`` is below the size of a cluster.
    """

    def __init__(
        self,
        spec: IndexSpec,
        centroids: Vectors,
        lists: Sequence[ClusterList],
        clusters: Labels,
        max_norm: float,
        check: Callable[[int], None],
    ) -> None:
        super().__init__(spec, centroids)
        self.max_norm = max_norm
        self._in_file = tuple(lists)
        self._lists: ListTable = ListTable(self.quantizer, self.metric, self._in_file)
        largest = int(self._num_bytes().max(initial=0))
        if largest > spec.hot_bytes:
            raise ConfigError(
                "less memory for hot clusters than a cluster takes",
                where="hot_bytes",
                found=f"{spec.hot_bytes} bytes",
                valid=f"at least {largest} bytes, those of the largest cluster",
                hint="give more, or train more clusters",
            )
        self._check = check
        self._is_checked = np.zeros(len(centroids), dtype=bool)
        self._is_changed = np.zeros(len(centroids), dtype=bool)
        #: ``[labels]``, the cluster of each
        self._clusters = clusters.copy()
        self._hot = HotClusters(len(centroids), spec.hot_bytes)
        self._num_reads = self._num_hot_reads = 0
        self._exchanging: threading.Thread | None = None
        #: held to exchange lists, and to count
        self._lock = RenewedLock()

    def reserve(self, rows: Rows) -> None:
        """Do nothing: a change makes lists of its own."""

    def add(self, rows: Rows) -> None:
        """Put each vector into its cluster."""
        if not len(rows):
            return
        self.max_norm = max(self.max_norm, float(norms(rows.vectors).max()))
        clusters = np.unique(rows.clusters)
        self._require_whole(clusters)
        with self._lock.lock:
            more = int(rows.labels.max()) + 1 - len(self._clusters)
            if more > 0:
                room = np.full(max(more, len(self._clusters) // 4), _ABSENT, dtype=np.int64)
                self._clusters = np.concatenate([self._clusters, room])
            # First, so that ``remove`` finds them wherever this is broken off.
            self._clusters[rows.labels] = rows.clusters
            changed = dict[int, ClusterList]()
            for cluster in clusters.tolist():
                old, mine = self._lists.lists[cluster], rows.clusters == cluster
                vectors = np.concatenate([old.vectors, rows.vectors[mine]])
                labels = np.concatenate([old.labels, rows.labels[mine]])
                changed[cluster] = ClusterList.of(vectors, labels)
            self._change(changed)

    def remove(self, labels: Labels) -> None:
        """Remove vectors from their clusters."""
        labels = labels[(labels >= 0) & (labels < len(self._clusters))]
        labels = labels[self._clusters[labels] != _ABSENT]
        clusters = np.unique(self._clusters[labels])
        self._require_whole(clusters)
        with self._lock.lock:
            changed = dict[int, ClusterList]()
            for cluster in clusters.tolist():
                old = self._lists.lists[cluster]
                is_left = ~np.isin(old.labels, labels)
                if not is_left.all():  # else an ``add`` was broken off before
                    changed[cluster] = ClusterList.of(old.vectors[is_left], old.labels[is_left])
            self._change(changed)
            self._clusters[labels] = _ABSENT

    def gather(self, labels: Labels) -> Vectors:
        """Return copies of the vectors of these labels."""
        lists, clusters = self._lists.lists, self._clusters[labels]
        found = np.empty((len(labels), self.dimension), dtype=np.float32)
        order = np.argsort(clusters, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(clusters[order])) + 1):
            if len(rows):
                one = lists[int(clusters[rows[0]])]
                found[rows] = one.vectors[np.searchsorted(one.labels, labels[rows])]
        return found

    def cluster_sizes(self) -> Labels:
        return self._lists.sizes

    def assignments(self) -> tuple[Labels, Labels]:
        labels = np.flatnonzero(self._clusters != _ABSENT)
        return labels, self._clusters[labels]

    def clusters_of(self, labels: Labels) -> Labels:
        return self._clusters[labels]

    def lists(self) -> Sequence[ClusterList]:
        self._require_whole(np.arange(self.num_clusters))
        return self._lists.lists

    def begin(self, queries: Vectors, count: int, scope: SearchScope) -> list[ClusterScan]:
        scans = super().begin(queries, count, scope)
        self._note(np.concatenate([scan.clusters for scan in scans]))
        return scans

    def fetch(self, queries: Vectors, count: int, scope: SearchScope) -> tuple[Scores, Labels]:
        clusters = self._visited(queries, scope)
        self._note(clusters.ravel())
        selector = self._selector(scope)
        return self._lists.scan(queries, count, clusters, selector, self.cluster_sizes())

    @property
    def tier_counts(self) -> Mapping[str, int]:
        """Return the reads of clusters since the index was opened, and what lies in memory."""
        with self._lock.lock:
            sizes = self._num_bytes()
            return {
                "cluster_reads": self._num_reads,
                "hot_cluster_reads": self._num_hot_reads,
                "hot_cluster_bytes": int(sizes[self._hot.is_hot].sum()),
                "changed_cluster_bytes": int(sizes[self._is_changed].sum()),
            }

    def _num_bytes(self) -> Labels:
        return num_bytes(self.cluster_sizes(), self.dimension)

    def _require_whole(self, clusters: Labels) -> None:
        """Raise if the list of a cluster is not as it was written; each is looked at once."""
        if self._is_checked[clusters].all():
            return
        for cluster in np.unique(clusters[~self._is_checked[clusters]]).tolist():
            self._check(cluster)
            self._is_checked[cluster] = True

    def _note(self, clusters: Labels) -> None:
        """Count reads, and let a thread exchange clusters if it is time and none does."""
        self._require_whole(clusters)
        with self._lock.lock:
            self._num_reads += len(clusters)
            in_memory = self._hot.is_hot | self._is_changed
            self._num_hot_reads += int(np.count_nonzero(in_memory[clusters]))
            running = self._exchanging
            if not self._hot.note(clusters) or (running is not None and running.is_alive()):
                return
            self._exchanging = threading.Thread(
                target=self._exchange, name="rag-accel-clusters", daemon=True
            )
            self._exchanging.start()

    def _exchange(self) -> None:
        """Copy the hottest clusters into memory, while searches go on."""
        with self._lock.lock:
            taken, gone = self._hot.exchange(np.where(self._is_changed, 0, self._num_bytes()))
            self._move({one: self._in_file[one] for one in gone}, is_hot=False)
        for cluster in taken:
            copied = self._in_file[cluster].copy()
            with self._lock.lock:
                self._move({cluster: copied}, is_hot=True)

    def _move(self, lists: Mapping[int, ClusterList], *, is_hot: bool) -> None:
        """Have clusters that did not change read in other places."""
        lists = {at: one for at, one in lists.items() if not self._is_changed[at]}
        if lists:
            self._lists = self._lists.replaced(lists)
            self._hot.is_hot[[*lists]] = is_hot

    def _change(self, lists: Mapping[int, ClusterList]) -> None:
        if lists:
            self._is_changed[[*lists]] = True
            self._hot.is_hot[[*lists]] = False
            self._lists = self._lists.replaced(lists)

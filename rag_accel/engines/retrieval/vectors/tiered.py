"""Vectors in clusters whose lists never change, the most read ones in a faster memory as well.

The lists lie in a file or in memory; their hot copies in memory or on a device (HedraRAG 4.4). A
cluster that changes gets another list in memory. Each change, and each exchange of hot clusters,
makes another table, so searches that run read the one that they began with.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.vectors.cluster_scans import ClusterScan
from rag_accel.engines.retrieval.vectors.device_lists import Copies, DeviceLists
from rag_accel.engines.retrieval.vectors.hot_clusters import HotClusters
from rag_accel.engines.retrieval.vectors.inverted_list import InvertedList, num_bytes
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors
from rag_accel.engines.retrieval.vectors.learned_way import LearnedWay
from rag_accel.engines.retrieval.vectors.list_table import ListTable
from rag_accel.engines.retrieval.vectors.spec import IndexSpec, Vectors, norms
from rag_accel.engines.retrieval.vectors.vectors import NO_LABEL, Rows, Scores, SearchScope
from rag_accel.errors import ConfigError
from rag_accel.system.locks import RenewedLock

_ABSENT = -1

logger = logging.getLogger("rag_accel.retrieval")


def nothing_to_check(cluster: int) -> None:
    """Check no list: those in memory are as they were made."""


class TieredVectors(IvfVectors):
    """An index as ``IvfVectors``, over lists that never change.

    Args:
        spec: dimension, metric, ``nprobe``, ``hot``, ``hot_bytes``.
        centroids: ``[num_clusters, dim]``.
        lists: of each cluster.
        clusters: ``[n]``, the cluster of each label.
        max_norm: a length that no vector exceeds.
        check: raises if a cluster's list is not as it was written; asked before it is read.
        read_ahead: has the system read lists that are about to be scanned; None if it cannot.

    Raises:
        ConfigError: there is no such device.
    """

    def __init__(
        self,
        spec: IndexSpec,
        centroids: Vectors,
        lists: Sequence[InvertedList],
        clusters: Labels,
        max_norm: float,
        check: Callable[[int], None] = nothing_to_check,
        read_ahead: Callable[[Sequence[int]], None] | None = None,
    ) -> None:
        super().__init__(spec, centroids)
        assert spec.hot is not None, "an index without hot clusters"
        self.max_norm = max_norm
        #: the lists as they were given
        self.given = tuple(lists)
        self._lists: ListTable = ListTable(self.quantizer, self.metric, self.given)
        self._check = check
        self._is_checked = np.zeros(len(centroids), dtype=bool)
        self._is_changed = np.zeros(len(centroids), dtype=bool)
        #: ``[labels]``, the cluster of each
        self._clusters = clusters.copy()
        self._hot = HotClusters(len(centroids), spec.hot_bytes)
        self._device: DeviceLists | None = None
        if spec.hot != "ram":
            self._device = DeviceLists(spec.hot, spec.metric, len(centroids), spec.dimension)
        self._read_ahead = read_ahead
        self._way, self._filtered_way = LearnedWay(), LearnedWay()
        self._num_reads = self._num_hot_reads = 0
        self._exchanging: threading.Thread | None = None
        #: held to exchange lists, and to count
        self._lock = RenewedLock()

    @classmethod
    def over(cls, spec: IndexSpec, held: IvfVectors) -> TieredVectors:
        """Return the same vectors, in lists that never change."""
        labels, clusters = held.assignments()
        places = np.full(int(labels.max(initial=-1)) + 1, _ABSENT, dtype=np.int64)
        places[labels] = clusters
        return cls(spec, held.centroids, held.lists(), places, held.max_norm)

    def require_room(self, hot_bytes: int) -> None:
        """Raise ConfigError unless each cluster has room in the faster memory."""
        largest = int(self._num_bytes().max(initial=0))
        if largest > hot_bytes:
            raise ConfigError(
                "less memory for hot clusters than a cluster takes",
                where="hot_bytes",
                found=f"{hot_bytes} bytes",
                valid=f"at least {largest} bytes, those of the largest cluster",
                hint="give more, or train more clusters",
            )

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
            changed = dict[int, InvertedList]()
            for cluster in clusters.tolist():
                old, mine = self._lists.lists[cluster], rows.clusters == cluster
                vectors = np.concatenate([old.vectors, rows.vectors[mine]])
                labels = np.concatenate([old.labels, rows.labels[mine]])
                changed[cluster] = InvertedList.of(vectors, labels)
            self._change(changed)

    def remove(self, labels: Labels) -> None:
        """Remove vectors from their clusters."""
        labels = labels[(labels >= 0) & (labels < len(self._clusters))]
        labels = labels[self._clusters[labels] != _ABSENT]
        clusters = np.unique(self._clusters[labels])
        self._require_whole(clusters)
        with self._lock.lock:
            changed = dict[int, InvertedList]()
            for cluster in clusters.tolist():
                old = self._lists.lists[cluster]
                is_left = ~np.isin(old.labels, labels)
                if not is_left.all():  # else an ``add`` was broken off before
                    changed[cluster] = InvertedList.of(old.vectors[is_left], old.labels[is_left])
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

    def lists(self) -> Sequence[InvertedList]:
        self._require_whole(np.arange(self.num_clusters))
        return self._lists.lists

    def begin(self, queries: Vectors, count: int, scope: SearchScope) -> list[ClusterScan]:
        scans = super().begin(queries, count, scope)
        self._note(np.concatenate([scan.clusters for scan in scans]))
        return scans

    def fetch(self, queries: Vectors, count: int, scope: SearchScope) -> tuple[Scores, Labels]:
        clusters = self._visited(queries, scope)
        self._note(clusters.ravel())
        device = self._device
        if device is not None and device.why_not() is None:
            copies = device.copies
            is_hot = copies.is_valid[clusters]
            if is_hot.any():
                return self._fetch_hot(device, copies, queries, count, clusters, is_hot, scope)
        selector, sizes = self._selector(scope), self.cluster_sizes()
        cold = self._cold(clusters)
        if self._read_ahead is None or not len(cold):
            return self._lists.scan(queries, count, clusters, selector, sizes)
        started, numbers = time.perf_counter(), int(sizes[cold].sum()) * self.dimension
        with self._lock.lock:
            ahead = self._way.choose(numbers)
        if ahead:
            self._read_ahead(cold.tolist())
        found = self._lists.scan(queries, count, clusters, selector, sizes)
        with self._lock.lock:
            self._way.note(ahead, numbers, started)
        return found

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

    @property
    def tier_text(self) -> str:
        """Return the line that ``Accelerator.explain`` shows."""
        share = self._num_hot_reads / max(1, self._num_reads)
        fault = None if self._device is None else self._device.why_not()
        where = "in memory" if self._device is None else f"on {self._device.name}"
        return (
            f"hot clusters {where}: {share:.0%} of reads"
            if fault is None
            else f"hot clusters {where} are not used: {fault}"
        )

    def _cold(self, clusters: Labels) -> Labels:
        """Return which of these clusters are read from the file, each once."""
        return np.unique(clusters[~(self._hot.is_hot | self._is_changed)[clusters]])

    def _num_bytes(self) -> Labels:
        return num_bytes(self.cluster_sizes(), self.dimension)

    def _require_whole(self, clusters: Labels) -> None:
        """Raise if the list of a cluster is not as it was written; each is looked at once."""
        if self._is_checked[clusters].all():
            return
        for cluster in np.unique(clusters[~self._is_checked[clusters]]).tolist():
            self._check(cluster)
            self._is_checked[cluster] = True

    def _fetch_hot(
        self,
        device: DeviceLists,
        copies: Copies,
        queries: Vectors,
        count: int,
        clusters: Labels,
        is_hot: npt.NDArray[np.bool_],
        scope: SearchScope,
    ) -> tuple[Scores, Labels]:
        """Scan hot clusters on the device and the others here, where that is faster."""
        way = self._way if scope.allowed is None else self._filtered_way
        started, sizes = time.perf_counter(), self.cluster_sizes()
        numbers = int(sizes[clusters[is_hot]].sum()) * self.dimension
        with self._lock.lock:
            on_device = way.choose(numbers)
        found, selector = None, self._selector(scope)
        if on_device:
            wanted = np.zeros((len(queries), self.num_clusters), dtype=bool)
            np.put_along_axis(wanted, clusters, is_hot, axis=1)
            begun = device.begin(copies, queries, count, wanted, scope.allowed)
            if begun is not None:
                others = np.where(is_hot, _ABSENT, clusters)
                here = self._lists.scan(queries, count, others, selector, sizes)
                there = device.end(begun)
                found = None if there is None else _merged(here, there, count)
        if found is None:
            found = self._lists.scan(queries, count, clusters, selector, sizes)
        with self._lock.lock:
            way.note(on_device, numbers, started)
        return found

    def _note(self, clusters: Labels) -> None:
        """Count reads, and let a thread exchange clusters if it is time and none does."""
        self._require_whole(clusters)
        with self._lock.lock:
            self._num_reads += len(clusters)
            in_memory = self._hot.is_hot if self._device else self._hot.is_hot | self._is_changed
            self._num_hot_reads += int(np.count_nonzero(in_memory[clusters]))
            running = self._exchanging
            if not self._hot.note(clusters) or (running is not None and running.is_alive()):
                return
            exchange = self._exchange if self._device is None else self._exchange_on_device
            # No daemon: one that comes back from C++ after the interpreter has ended aborts it.
            thread = threading.Thread(target=exchange, name="rag-accel-clusters")
            try:
                thread.start()
            except RuntimeError:  # the process cannot have another; the search goes on without
                return
            self._exchanging = thread

    def _exchange(self) -> None:
        """Copy the hottest clusters into memory, while searches go on."""
        with self._lock.lock:
            taken, gone = self._hot.exchange(np.where(self._is_changed, 0, self._num_bytes()))
            self._move({one: self.given[one] for one in gone}, is_hot=False)
        for cluster in taken:
            if not threading.main_thread().is_alive():  # the process ends, and waits for this
                return
            try:
                copied = self.given[cluster].copy()
            except MemoryError as error:
                logger.warning("no memory for more hot clusters: %s", error)
                return
            with self._lock.lock:
                self._move({cluster: copied}, is_hot=True)

    def _exchange_on_device(self) -> None:
        """Copy the hottest clusters to the device, while searches go on."""
        device = self._device
        assert device is not None, "no device"
        if device.why_not() is not None:
            return
        with self._lock.lock:
            taken, gone = self._hot.exchange(self._num_bytes())
            self._hot.is_hot[gone], self._hot.is_hot[taken] = False, True
            if np.array_equal(self._hot.is_hot, device.copies.is_valid):
                return
            hot, lists = np.flatnonzero(self._hot.is_hot).tolist(), self._lists.lists
        try:
            copies = device.copy(hot, [lists[cluster] for cluster in hot])
        except RuntimeError as error:
            device.give_up(error)
            return
        with self._lock.lock:
            device.copies = copies
            now = self._lists.lists
            device.forget([cluster for cluster in hot if now[cluster] is not lists[cluster]])

    def _move(self, lists: Mapping[int, InvertedList], *, is_hot: bool) -> None:
        """Have clusters that did not change read in other places."""
        lists = {at: one for at, one in lists.items() if not self._is_changed[at]}
        if lists:
            self._lists = self._lists.replaced(lists)
            self._hot.is_hot[[*lists]] = is_hot

    def _change(self, lists: Mapping[int, InvertedList]) -> None:
        if not lists:
            return
        self._is_changed[[*lists]] = True
        if self._device is None:
            self._hot.is_hot[[*lists]] = False
        else:
            self._device.forget([*lists])
        self._lists = self._lists.replaced(lists)


def _merged(
    some: tuple[Scores, Labels], others: tuple[Scores, Labels], count: int
) -> tuple[Scores, Labels]:
    """Return the best of two results, ``[n, count]``, ``NO_LABEL`` at the end of short rows."""
    scores = np.concatenate([some[0], others[0]], axis=1)
    labels = np.concatenate([some[1], others[1]], axis=1)
    scores[labels == NO_LABEL] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(labels, order, axis=1)

"""The document index: FAISS vectors and their documents.

A search holds the read side of a lock from its first read of the vectors to its last document, so
that it sees the index either before or after a change. A change is made whole or not at all, see
``contents.py``. It is short: searches go on while clusters are trained or assigned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rag_accel.engine_api import Document, Engine, ScoredDocument
from rag_accel.engines.retrieval.index.contents import NO_LABELS, ContentChange, State
from rag_accel.engines.retrieval.index.documents import DocumentTable, Labels
from rag_accel.engines.retrieval.index.locks import IndexLock
from rag_accel.engines.retrieval.vectors.checks import (
    check_count,
    check_filter,
    checked_documents,
    checked_ids,
    checked_vectors,
    copy_document,
)
from rag_accel.engines.retrieval.vectors.cluster_scans import ClusterScan, ScanPiece
from rag_accel.engines.retrieval.vectors.device_flat import DeviceFlatVectors
from rag_accel.engines.retrieval.vectors.device_lists import check_device
from rag_accel.engines.retrieval.vectors.early_stop import EarlyStop, StopReport
from rag_accel.engines.retrieval.vectors.flat import FlatVectors
from rag_accel.engines.retrieval.vectors.inverted_list import InvertedList
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors, code_ranges
from rag_accel.engines.retrieval.vectors.nearest import (
    Hits,
    limit_of,
    nearest,
    nearest_of,
    num_fetched,
)
from rag_accel.engines.retrieval.vectors.read_order import MOST_LABELS, LastSearch, use_order
from rag_accel.engines.retrieval.vectors.spec import IndexKind, IndexSpec, Vectors
from rag_accel.engines.retrieval.vectors.tiered import TieredVectors
from rag_accel.engines.retrieval.vectors.vectors import SearchScope
from rag_accel.errors import ConfigError
from rag_accel.registry import engine_registry


@dataclass(frozen=True, slots=True)
class TrainedClusters:
    """Clusters found by training.

    Args:
        centroids: ``[clusters, dim]``.
        assignments: each vector's cluster.
        ranges: ``[2, dim]``, what the codes divide; None without codes.
    """

    centroids: Vectors
    assignments: Labels
    ranges: Vectors | None = None


@dataclass(frozen=True, slots=True)
class IndexSnapshot:
    """One consistent state of an index; documents and vectors by insertion."""

    spec: IndexSpec
    documents: tuple[Document, ...]
    vectors: Vectors
    clusters: TrainedClusters | None = None
    #: of ``spec.stop``, in values of JSON
    calibration: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ListsSnapshot:
    """One consistent state of an index with clusters, by cluster; its lists never change.

    Args:
        documents: by insertion.
        labels: ``[documents]``, rising: what they are called in the lists.
        centroids: ``[clusters, dim]``.
        lists: of each cluster.
        max_norm: a length that no vector exceeds.
        calibration: as in ``IndexSnapshot``.
    """

    spec: IndexSpec
    documents: tuple[Document, ...]
    labels: Labels
    centroids: Vectors
    lists: Sequence[InvertedList]
    max_norm: float
    calibration: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class IndexScan:
    """A search that is read in pieces, of one state of an index.

    Args:
        scan: its clusters, and the nearest so far.
        limit: how many documents it finds.
        scope: where it searches.
        view: the state.
        seeds: labels of its request's last results in its clusters, each once.
    """

    scan: ClusterScan
    limit: int
    scope: SearchScope
    view: State
    seeds: Labels

    def is_of(self, view: State) -> bool:
        """Tell whether a state is the one in which it began."""
        return self.view.version == view.version and self.view.vectors is view.vectors


class DocumentIndex:
    """An index of documents and their vectors; every method may be called from any thread.

    Scores are higher-is-nearer: the inner product, or the negated squared L2 distance
    (``spec.metric.raw_score(score)`` gives FAISS's own number back). Searching is exact over what
    it visits: computed in float64, equal scores ordered by insertion, also at the cut after ``k``,
    and the same whether queries come alone or together. With ``spec.codes`` or ``spec.stop`` it is
    approximate: results may be missed, see ``recall`` and ``stopping``.

    Args:
        spec: dimension, metric and kind.

    Raises:
        ImportError: FAISS is not installed.
        ConfigError: there is no such device as ``spec.hot``, or no torch.
    """

    def __init__(self, spec: IndexSpec) -> None:
        self._spec = spec
        on_device = spec.hot is not None and spec.kind is IndexKind.FLAT
        self._state = State(DeviceFlatVectors(spec) if on_device else FlatVectors(spec))
        self._unsettled: ContentChange | None = None  # under way, or broken off
        self._lock = IndexLock()
        #: the file that its clusters are read from, and what tells it from another one at its
        #: path; None if they are in memory
        self.origin: tuple[Path, tuple[int, int]] | None = None
        self._stop = None if spec.stop is None else EarlyStop(spec.stop)
        if spec.hot not in (None, "ram"):
            check_device(spec.hot)

    @classmethod
    def from_snapshot(cls, snapshot: IndexSnapshot) -> DocumentIndex:
        """Build an index in the state of a snapshot, without training again.

        Whether it has codes is up to the snapshot's ``spec``: ``replace(spec, codes="sq8")`` gives
        them to an index that had none.

        Raises:
            ConfigError: its calibration is of other clusters.
        """
        index, spec, assignments = cls(snapshot.spec), snapshot.spec, None
        if snapshot.clusters is not None:
            centroids, ranges = snapshot.clusters.centroids, snapshot.clusters.ranges
            assignments = snapshot.clusters.assignments
            if spec.codes is None:
                ranges = None
            elif ranges is None:
                ranges = code_ranges(centroids, snapshot.vectors, assignments)
            index._state = State(IvfVectors(spec, centroids, ranges))
            if index._stop is not None and snapshot.calibration is not None:
                index._stop.restore(snapshot.calibration, centroids)
        index._make(index._state.putting(snapshot.documents, snapshot.vectors, assignments))
        index._state = replace(index._state, vectors=tiered(spec, index._state.vectors))
        return index

    @classmethod
    def over_lists(
        cls,
        snapshot: ListsSnapshot,
        clusters: Labels,
        check: Callable[[int], None],
        read_ahead: Callable[[Sequence[int]], None] | None,
    ) -> DocumentIndex:
        """Build an index over lists that stay where they lie.

        Args:
            snapshot: with labels from 0 on.
            clusters: ``[documents]``, the cluster of each.
            check: raises if a cluster's list is not as it was written; asked before it is read.
            read_ahead: has the system read lists that are about to be scanned; None if it cannot.

        Raises:
            ConfigError: its calibration is of other clusters.
        """
        index, documents, count = cls(snapshot.spec), DocumentTable(), len(snapshot.documents)
        held = TieredVectors(
            snapshot.spec,
            snapshot.centroids,
            snapshot.lists,
            clusters,
            snapshot.max_norm,
            check,
            read_ahead,
        )
        documents.put(documents.intake(snapshot.documents))
        index._state = State(held, documents, 1, count, count)
        if index._stop is not None and snapshot.calibration is not None:
            index._stop.restore(snapshot.calibration, snapshot.centroids)
        return index

    @property
    def spec(self) -> IndexSpec:
        """Return the configuration; constant."""
        return self._spec

    @property
    def version(self) -> int:
        """Return a number that grows with each change of the contents."""
        return self._state.version

    @property
    def fields(self) -> frozenset[str]:
        """Return the metadata fields that some document has, or once had."""
        return self._state.documents.fields

    @property
    def is_trained(self) -> bool:
        """Tell whether searches go through clusters; False for a flat or still small index."""
        return isinstance(self._state.vectors, IvfVectors)

    def __len__(self) -> int:
        return self._state.count

    def as_engine(self) -> Engine:
        """Return a new engine over this index, of the class registered as ``retrieval``."""
        return engine_registry().get("retrieval")(self)

    def add(self, documents: Sequence[Document], vectors: Any) -> None:
        """Take documents with ``vectors: [len(documents), dim], float32``, all or none.

        A document whose id is present replaces it and keeps its place among equal scores; of equal
        ids in one call the last document counts. May train clusters, see ``IndexSpec``.

        Raises:
            ConfigError: something is not a document, or the vectors have the wrong shape.
            EngineOutputError: a vector holds NaN or an infinity.
        """
        taken = checked_documents(documents)
        checked = checked_vectors(
            vectors,
            self._spec.dimension,
            lambda row: f"vector of document {taken[row].id!r}",
            len(taken),
        )
        last = {document.id: position for position, document in enumerate(taken)}
        if not last:
            return
        chosen = list(last.values())
        rows = [taken[place] for place in chosen], checked[chosen]
        with self._lock.changing():
            self._change(lambda state: state.putting(*rows))
            self._train_when_due()

    def delete(self, ids: Iterable[str]) -> int:
        """Remove the documents of these ids and return how many there were; ignore unknown ids.

        Raises:
            ConfigError: ``ids`` is one text, or holds something that is no text.
        """
        wanted = checked_ids(ids)
        with self._lock.changing():
            return len(self._change(lambda state: state.removing(wanted)).removed)

    def get(self, ids: Iterable[str]) -> list[Document]:
        """Return the documents of these ids in this order, leaving out unknown ids.

        Raises:
            ConfigError: ``ids`` is one text, or holds something that is no text.
        """
        wanted = checked_ids(ids)
        with self.reading():
            documents = self.view().documents
            return [copy_document(documents[label]) for label in documents.labels_of(wanted)]

    def vectors(self, ids: Iterable[str]) -> dict[str, Vectors]:
        """Return copies of the vectors of these ids, ``[dim]`` each, leaving out unknown ids.

        Raises:
            ConfigError: ``ids`` is one text, or holds something that is no text.
        """
        wanted = checked_ids(ids)
        with self.reading():
            view = self.view()
            labels = view.documents.labels_of(wanted)
            rows = view.vectors.gather(np.asarray(labels, dtype=np.int64))
            return {view.documents[label].id: row for label, row in zip(labels, rows, strict=True)}

    def search(
        self,
        vectors: Any,
        k: int | Sequence[int],
        where: Mapping[str, Any] | None = None,
        nprobe: int | None = None,
    ) -> list[list[ScoredDocument]]:
        """Return for each row of ``vectors: [n, dim], float32`` its nearest documents, best first.

        Args:
            vectors: the queries.
            k: how many to find, for all queries or for each; 0 and below find none.
            where: find only documents whose metadata equals (``==``) every value given here. A
                field that a document lacks never matches. ``k`` counts matching documents only,
                and an IVF index then visits every cluster unless ``nprobe`` is given.
            nprobe: clusters to visit instead of the index's own number; a flat index ignores it.

        Returns:
            ``min(k, matching documents)`` for each query, also where the clusters visited hold
            fewer (then all are). The metadata mappings are the caller's own.

        Raises:
            ConfigError: wrong shape, ``k``, ``where`` or ``nprobe``.
            EngineOutputError: a query holds NaN or an infinity.
        """
        queries = checked_vectors(vectors, self._spec.dimension, lambda row: f"query {row}")
        check_filter(where, nprobe)
        return self.search_checked(queries, _counts(k, len(queries)), where, nprobe)

    def search_checked(
        self,
        queries: Vectors,
        counts: Sequence[int],
        where: Mapping[str, Any] | None,
        nprobe: int | None,
    ) -> list[list[ScoredDocument]]:
        """Do as ``search`` with arguments that were checked when each query came."""
        with self._lock.reading():
            view = self.view()
            hits = self._nearest(view, queries, counts, view.scope(where, nprobe))
            return [view.scored(found) for found in hits]

    def numbers_read(self, nprobe: int | None, in_full: bool) -> int:
        """Return about how many numbers a search without a filter reads.

        0 if it is not read in pieces: the index is flat, not trained yet, or has codes, or such
        searches stop early. With ``in_full`` none stops, as if ``spec.stop`` were None: a search
        that reports provisional results reads all of its clusters in pieces.
        """
        state = self._state
        vectors = state.vectors
        if not isinstance(vectors, IvfVectors) or vectors.refine:
            return 0
        if self._stop is not None and nprobe is None and not in_full:
            return 0
        visited = vectors.num_visited(False, nprobe) / vectors.num_clusters
        return int(visited * state.count * self._spec.dimension)

    def begin_scans(
        self, queries: Vectors, counts: Sequence[int], nprobe: int | None
    ) -> list[IndexScan]:
        """Return a search for each of ``queries: [n, dim]``, of which nothing is read yet.

        The arguments are those of ``search_checked``, on an index whose ``numbers_read`` is not 0.
        """
        with self._lock.reading():
            view = self.view()
            assert isinstance(view.vectors, IvfVectors), "an index without clusters"
            scope = view.scope(None, nprobe)
            limits = [limit_of(count, scope.size) for count in counts]
            scans = view.vectors.begin(queries, num_fetched(max(limits), scope.size), scope)
            return [
                IndexScan(scan, limit, scope, view, NO_LABELS)
                for scan, limit in zip(scans, limits, strict=True)
            ]

    def follow(self, begun: IndexScan, last: LastSearch) -> IndexScan:
        """Let a search begin with its request's last results, unless the index has changed since.

        Their clusters are read early, and reports of the search name these results as if read.
        """
        with self._lock.reading():
            view = self.view()
            if not begun.is_of(view) or last.version != view.version:
                return begun
            use_order("mixed", begun.scan, view.vectors.metric, last)
            seeds = last.labels[np.isin(last.clusters, begun.scan.clusters)]
            return replace(begun, seeds=seeds)

    def read_scans(
        self, scans: Sequence[IndexScan], pieces: Sequence[ScanPiece], threads: int
    ) -> list[IndexScan]:
        """Read the next piece of each search; return those of which the index has changed since.

        Of these nothing is read.
        """
        with self._lock.reading():
            view = self.view()
            pairs = zip(scans, pieces, strict=True)
            current = [piece for scan, piece in pairs if scan.is_of(view)]
            if current and isinstance(view.vectors, IvfVectors):
                view.vectors.advance(current, threads)
            return [scan for scan in scans if not scan.is_of(view)]

    def scanned(self, found: IndexScan) -> tuple[list[ScoredDocument], LastSearch] | None:
        """Return what ``search`` returns if all is read, else the same of what is read and seeds.

        Beside it, the best of these for a ``SearchHistory``. None if the index has changed since
        the search began.
        """
        with self._lock.reading():
            view, scan = self.view(), found.scan
            if not found.is_of(view) or not isinstance(view.vectors, IvfVectors):
                return None
            if scan.is_over:
                first, queries = (scan.scores[None], scan.labels[None]), scan.query[None]
                hits = nearest(view.vectors, queries, [found.limit], found.scope, fetched=first)[0]
            else:
                seeds = found.seeds[~np.isin(found.seeds, scan.labels)]
                labels = np.concatenate([scan.labels, seeds])
                hits = nearest_of(view.vectors, scan.query, found.limit, labels)
            best = hits.labels[:MOST_LABELS]
            # A history of every search's clusters would grow large, and "mixed" asks for none.
            last = LastSearch(view.version, best, view.vectors.clusters_of(best), NO_LABELS)
            return view.scored(hits), last

    def recall(self, vectors: Any, k: int, nprobe: int | None = None) -> float:
        """Return the share of results that searches by codes do not miss; 1.0 without codes.

        Compared are searches for ``vectors: [n, dim], float32`` by codes and by the vectors, in the
        same clusters.

        Raises:
            ConfigError: wrong shape, ``k`` or ``nprobe``.
            EngineOutputError: a query holds NaN or an infinity.
        """
        queries = checked_vectors(vectors, self._spec.dimension, lambda row: f"query {row}")
        check_filter(None, nprobe)
        counts = _counts(k, len(queries))
        with self._lock.reading():
            view = self.view()
            scope = view.scope(None, nprobe)
            found = nearest(view.vectors, queries, counts, scope)
            exact = nearest(view.vectors, queries, counts, scope, without_codes=True)
        pairs = zip(found, exact, strict=True)
        num_hits = sum(len(hits.labels) for hits in exact)
        num_found = sum(len(np.intersect1d(ours.labels, all_.labels)) for ours, all_ in pairs)
        return num_found / num_hits if num_hits else 1.0

    def calibrate(self, vectors: Any, k: int) -> None:
        """Read searches like those to come in full, and learn from them when to stop.

        An index also learns from the searches that it is asked for. Until there were 200 with a
        similar ``k`` it stops none of these.

        Args:
            vectors: ``[n, dim], float32``, the queries.
            k: how many each finds.

        Raises:
            ConfigError: wrong shape or ``k``, ``spec.stop`` is None, or there are no clusters yet.
            EngineOutputError: a query holds NaN or an infinity.
        """
        queries = checked_vectors(vectors, self._spec.dimension, lambda row: f"query {row}")
        counts = _counts(k, len(queries))
        with self._lock.reading():
            view = self.view()
            if self._stop is None or not isinstance(view.vectors, IvfVectors):
                raise ConfigError(
                    "an index whose searches do not stop early",
                    where="calibrate",
                    found=f"stop={self._spec.stop!r}, {len(view.documents)} documents",
                    valid=f"IndexSpec.stop, and {self._spec.train_size} documents to train with",
                )
            self._stop.calibrate(view.vectors, queries, counts, view.scope(None, None))

    @property
    def stopping(self) -> tuple[StopReport, ...]:
        """Return reports on early stops by ``k``, least first; empty without ``spec.stop``."""
        return () if self._stop is None else self._stop.reports()

    @property
    def stop_counts(self) -> Mapping[str, int]:
        """Return counts of early stops by name; empty without ``spec.stop``."""
        return {} if self._stop is None else self._stop.counts

    def reading(self) -> AbstractContextManager[object]:
        """Return the shared read lock, which holds off changes: ``with index.reading(): ...``.

        Inside the block the index may be read, and not be changed.

        Raises:
            ConfigError: this thread is changing the index.
        """
        return self._lock.reading()

    def view(self) -> State:
        """Return the present state, to be used inside a block of ``reading()``."""
        if self._unsettled is not None:
            # All readers come through here, so none looks while one of them settles it.
            with self._lock.touching:
                self._settle()
        return self._state

    def snapshot(self) -> IndexSnapshot:
        """Copy the present state, for saving."""
        with self._lock.changing():  # no change can run, and searches go on
            view = self._settled()
            held, clusters, calibration = view.vectors, None, None
            vectors = held.gather(view.documents.labels())
            if isinstance(held, IvfVectors):
                clusters = TrainedClusters(held.centroids, held.assignments()[1], held.ranges)
                if self._stop is not None:
                    calibration = self._stop.saved(held.centroids)
            documents = view.documents.in_order()
            return IndexSnapshot(self._spec, documents, vectors, clusters, calibration)

    def lists_snapshot(self) -> ListsSnapshot:
        """Return the present state of an index with clusters, for saving."""
        with self._lock.changing():
            view = self._settled()
            held = view.vectors
            assert isinstance(held, IvfVectors), "an index without clusters"
            calibration = None if self._stop is None else self._stop.saved(held.centroids)
            return ListsSnapshot(
                self._spec,
                view.documents.in_order(),
                view.documents.labels(),
                held.centroids,
                held.lists(),
                held.max_norm,
                calibration,
            )

    def require_hot_room(self) -> None:
        """Raise ConfigError if a cluster exceeds ``spec.hot_bytes``.

        Not asked where documents are added: clusters grow, and those that exceed it have no copy.
        """
        held = self._state.vectors
        if isinstance(held, TieredVectors):
            held.require_room(self._spec.hot_bytes)

    @property
    def tier_counts(self) -> Mapping[str, int]:
        """Return counts of reads, and of bytes in the faster memory; empty without one."""
        held = self._state.vectors
        return held.tier_counts if isinstance(held, TieredVectors | DeviceFlatVectors) else {}

    @property
    def tier_text(self) -> tuple[str, ...]:
        """Return a line on the faster memory; empty without one."""
        held = self._state.vectors
        return (held.tier_text,) if isinstance(held, TieredVectors | DeviceFlatVectors) else ()

    def _nearest(
        self, view: State, queries: Vectors, counts: Sequence[int], scope: SearchScope
    ) -> list[Hits]:
        if self._stop is None or not isinstance(view.vectors, IvfVectors):
            return nearest(view.vectors, queries, counts, scope)
        return self._stop.nearest(view.vectors, queries, counts, scope)

    def _change(self, prepare: Callable[[State], ContentChange]) -> ContentChange:
        # This and the methods below are called by the thread that holds ``changing``.
        change = prepare(self._settled())
        if not change.num_changed:
            return change
        try:
            self._lock.writing(partial(self._make, change))
        except BaseException:
            self._settled()  # should this be interrupted too, the next one to come does it
            raise
        if self._stop is not None and self.is_trained:
            self._stop.changed(change.num_changed, change.after.count)
        return change

    def _make(self, change: ContentChange) -> None:
        self._unsettled = change
        change.begin()
        self._state = change.after  # now there is no way back
        change.finish()
        self._unsettled = None

    def _settle(self) -> None:
        """Undo or finish a change that was broken off; this may be broken off, too."""
        change, state = self._unsettled, self._state
        if change is None:
            return
        if state is change.after:
            state.documents.forget_filters()  # they may be what it failed at
            change.finish()
        else:
            change.undo()
            self._state = replace(state, next_label=change.after.next_label)
        self._unsettled = None

    def _settled(self) -> State:
        with self.reading():
            return self.view()

    def _train_when_due(self) -> None:
        if self._spec.kind is IndexKind.FLAT or self.is_trained:
            return
        if len(self) < self._spec.train_size:
            return
        state = self._settled()
        labels = state.documents.labels()
        trained = IvfVectors.train(self._spec, labels, state.vectors.gather(labels))
        self._state = replace(state, vectors=tiered(self._spec, trained))


def tiered(spec: IndexSpec, vectors: FlatVectors | IvfVectors) -> FlatVectors | IvfVectors:
    """Return vectors in memory with the tier that they are to have: copies on a device, or none."""
    if spec.hot in (None, "ram") or not isinstance(vectors, IvfVectors):
        return vectors
    return TieredVectors.over(spec, vectors)


def _counts(k: int | Sequence[int], num_queries: int) -> list[int]:
    if not isinstance(k, Sequence):
        check_count(k)
        return [k] * num_queries
    for count in k:
        check_count(count)
    if len(k) != num_queries:
        raise ConfigError(
            "wrong number of result counts",
            where="k",
            found=len(k),
            valid=f"one integer, or {num_queries}, one for each query",
        )
    return list(k)

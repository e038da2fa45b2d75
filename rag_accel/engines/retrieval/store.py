"""Search documents by vector: FAISS vectors with the documents beside them.

A search holds the read side of a lock from its first look at the vectors to the last document it
takes, so that it sees the index either before or after a change. Copying the index for each change
would free searches from waiting, but a loop of one-document adds would then cost the square of
the index; a change is short, and the one long thing, training clusters, is done beside the
searches, which wait only for the swap.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from rag_accel.engine_api import Document, ScoredDocument
from rag_accel.engines.retrieval.checks import (
    Vectors,
    check_count,
    check_filter,
    checked_documents,
    checked_vectors,
    copy_document,
)
from rag_accel.engines.retrieval.documents import DocumentTable, Labels
from rag_accel.engines.retrieval.flat_vectors import FlatVectors
from rag_accel.engines.retrieval.index_spec import IndexKind, IndexSpec
from rag_accel.engines.retrieval.ivf_vectors import IvfVectors
from rag_accel.engines.retrieval.locks import ReadWriteLock
from rag_accel.engines.retrieval.nearest import nearest
from rag_accel.engines.retrieval.search_view import IndexView
from rag_accel.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TrainedClusters:
    """Hold what training found: ``centroids: [clusters, dim]`` and each vector's cluster."""

    centroids: Vectors
    assignments: Labels


@dataclass(frozen=True, slots=True)
class IndexSnapshot:
    """Hold one consistent state of an index; documents and vectors by insertion."""

    spec: IndexSpec
    documents: tuple[Document, ...]
    vectors: Vectors
    clusters: TrainedClusters | None = None


class DocumentIndex:
    """Hold documents and their vectors; every method may be called from any thread.

    Scores are higher-is-nearer: the inner product, or the negated squared L2 distance
    (``spec.metric.raw_score(score)`` gives FAISS's own number back). Searching is exact over what
    it visits: computed in float64, equal scores ordered by insertion, also at the cut after ``k``,
    and the same whether queries come alone or together.

    Args:
        spec: dimension, metric and kind.

    Raises:
        ImportError: FAISS is not installed.
    """

    def __init__(self, spec: IndexSpec) -> None:
        self._spec = spec
        self._documents = DocumentTable()
        self._vectors: FlatVectors | IvfVectors = FlatVectors(spec)
        self._version = 0
        self._fields: frozenset[str] = frozenset()
        self._lock = ReadWriteLock()
        self._changing = threading.Lock()  # one change at a time, training included

    @classmethod
    def from_snapshot(cls, snapshot: IndexSnapshot) -> DocumentIndex:
        """Build an index in the state of a snapshot, without training again."""
        index = cls(snapshot.spec)
        labels = np.arange(len(snapshot.documents), dtype=np.int64)
        index._documents.put(labels, snapshot.documents)
        index._note_fields(snapshot.documents)
        if snapshot.clusters is None:
            index._vectors.add(labels, snapshot.vectors)
        else:
            ivf = IvfVectors(snapshot.spec, snapshot.clusters.centroids)
            ivf.add_assigned(labels, snapshot.vectors, snapshot.clusters.assignments)
            index._vectors = ivf
        return index

    @property
    def spec(self) -> IndexSpec:
        """Return the configuration; constant."""
        return self._spec

    @property
    def version(self) -> int:
        """Return a number that grows with each change of the contents."""
        return self._version

    @property
    def fields(self) -> frozenset[str]:
        """Return the metadata fields that some document has, or once had."""
        return self._fields

    @property
    def is_trained(self) -> bool:
        """Tell whether searches go through clusters; False for a flat or still small index."""
        return isinstance(self._vectors, IvfVectors)

    def __len__(self) -> int:
        return len(self._documents)

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
        with self._changing:
            self._put([taken[position] for position in chosen], checked[chosen])
            self._train_when_due()

    def delete(self, ids: Iterable[str]) -> int:
        """Remove the documents of these ids and return how many there were; ignore unknown ids."""
        wanted = _as_list(ids)
        with self._changing:
            labels = list(dict.fromkeys(self._documents.labels_of(wanted)))
            if labels:
                with self._lock.writing():
                    self._vectors.remove(np.asarray(labels, dtype=np.int64))
                    self._documents.remove(labels)
                    self._version += 1
            return len(labels)

    def get(self, ids: Iterable[str]) -> list[Document]:
        """Return the documents of these ids in this order, leaving out unknown ids."""
        wanted = _as_list(ids)
        with self._lock.reading():
            labels = self._documents.labels_of(wanted)
            return [copy_document(self._documents[label]) for label in labels]

    def vectors(self, ids: Iterable[str]) -> dict[str, Vectors]:
        """Return copies of the vectors of these ids, ``[dim]`` each, leaving out unknown ids."""
        wanted = _as_list(ids)
        with self._lock.reading():
            labels = self._documents.labels_of(wanted)
            rows = self._vectors.gather(np.asarray(labels, dtype=np.int64))
            return {self._documents[label].id: row for label, row in zip(labels, rows, strict=True)}

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
        queries = checked_vectors(vectors, self._spec.dimension, _query_name)
        counts = _counts(k, len(queries))
        check_filter(where, nprobe)
        with self.viewing() as view:
            hits = nearest(view.vectors, queries, counts, view.scope(where, nprobe))
            return [view.scored(found) for found in hits]

    @contextmanager
    def viewing(self) -> Generator[IndexView]:
        """Hold off changes while the block looks at the index; searches go on beside it.

        Not reentrant: inside the block call no method of this index.
        """
        with self._lock.reading():
            yield IndexView(self._version, self._vectors, self._documents)

    def num_compared(self, where: Mapping[str, Any] | None, nprobe: int | None) -> int:
        """Estimate how many vectors a search compares with, clusters taken as equally large."""
        vectors = self._vectors
        return len(vectors) * vectors.num_visited(bool(where), nprobe) // vectors.num_clusters

    def snapshot(self) -> IndexSnapshot:
        """Copy the present state, for saving."""
        with self._changing:  # no change can run, and searches go on
            vectors = self._vectors.gather(self._documents.labels())
            clusters = None
            if isinstance(self._vectors, IvfVectors):
                assignments = self._vectors.assignments()[1]
                clusters = TrainedClusters(self._vectors.centroids, assignments)
            return IndexSnapshot(self._spec, self._documents.in_order(), vectors, clusters)

    def _put(self, documents: list[Document], vectors: Vectors) -> None:
        labels, is_known = self._documents.assign_labels(documents)
        with self._lock.writing():
            self._vectors.add(labels[~is_known], vectors[~is_known])
            self._vectors.replace(labels[is_known], vectors[is_known])
            self._documents.put(labels, documents)
            self._note_fields(documents)
            self._version += 1

    def _note_fields(self, documents: Iterable[Document]) -> None:
        self._fields = self._fields.union(*(document.metadata for document in documents))

    def _train_when_due(self) -> None:
        if self._spec.kind is IndexKind.FLAT or self.is_trained:
            return
        if len(self) < self._spec.train_size:
            return
        labels = self._documents.labels()
        trained = IvfVectors.train(self._spec, labels, self._vectors.gather(labels))
        with self._lock.writing():
            self._vectors = trained


def _as_list(ids: Iterable[str]) -> list[str]:
    if isinstance(ids, str):  # its letters would pass for ids
        raise ConfigError(
            "bad ids", where="ids", found=repr(ids), valid="several ids, not one text"
        )
    return list(ids)


def _query_name(row: int) -> str:
    return f"query {row}"


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

"""Search a document index on an owned engine, so that concurrent searches share its steps."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from langchain_rag_accel.context import identity_for
from langchain_rag_accel.owned import aowned_or_plain, owned_or_plain
from rag_accel.accelerator import Accelerator, RequestIdentity, Work
from rag_accel.engine_api import Document, Engine, PrimitiveKind, ScoredDocument, SearchQuery
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec, RetrievalEngine

Hits = tuple[ScoredDocument, ...]


class SharedIndex:
    """Hold an index that is made with its first vectors, whose dimension nobody knows before.

    Args:
        index: the index, if there is one already.
        normalize: scale vectors to length one, documents' and queries' alike.
    """

    def __init__(self, index: DocumentIndex | None, normalize: bool) -> None:
        self.index = index
        self.normalize = normalize
        self._lock = threading.Lock()

    def of_dimension(self, dimension: int) -> DocumentIndex:
        """Return the index; a flat one for cosine or inner product is made if there is none."""
        with self._lock:
            if self.index is None:
                self.index = DocumentIndex(IndexSpec(dimension))
            return self.index

    def add(self, documents: Sequence[Document], vectors: Sequence[Sequence[float]]) -> None:
        """Take documents, replacing those whose ids are present."""
        if documents:
            self.of_dimension(len(vectors[0])).add(documents, self._scaled(vectors))

    def delete(self, ids: Iterable[str]) -> None:
        """Forget documents; unknown ids are ignored."""
        if self.index is not None:
            self.index.delete(ids)

    def get(self, ids: Iterable[str]) -> list[Document]:
        """Return the documents of these ids, leaving out unknown ids."""
        return [] if self.index is None else self.index.get(ids)

    def vectors(self, ids: Iterable[str]) -> dict[str, Any]:
        """Return the vectors of these ids, leaving out unknown ids."""
        return {} if self.index is None else self.index.vectors(ids)

    def search(self, query: SearchQuery, own: Accelerator | None) -> Hits:
        """Return the nearest documents, best first; raises what ``DocumentIndex.search`` raises."""
        index = self.index
        if index is None:
            return ()
        query = self._query(query)
        identity = identity_for(own)
        plain = partial(_search_alone, index, query)
        if identity is None:
            return plain()
        accelerator = identity.accelerator
        return owned_or_plain(
            accelerator,
            lambda: accelerator.leaves.compute(identity, _work(index, query, identity, self)),
            plain,
            "retrieval",
        )

    async def asearch(self, query: SearchQuery, own: Accelerator | None) -> Hits:
        """Return the nearest documents without blocking the loop."""
        index = self.index
        if index is None:
            return ()
        query = self._query(query)
        identity = identity_for(own)

        async def plain() -> Hits:
            return _search_alone(index, query)

        if identity is None:
            return await plain()
        accelerator = identity.accelerator
        return await aowned_or_plain(
            accelerator,
            lambda: accelerator.leaves.acompute(identity, _work(index, query, identity, self)),
            plain,
            "retrieval",
        )

    def _query(self, query: SearchQuery) -> SearchQuery:
        vector = self._scaled([query.vector])[0]
        return SearchQuery(vector, query.k, query.where, query.nprobe)

    def _scaled(self, vectors: Sequence[Sequence[float]]) -> Any:
        rows = np.asarray(vectors, dtype=np.float64)
        if not self.normalize or rows.ndim != 2:
            return rows
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows / np.where(lengths > 0, lengths, 1.0)


def _search_alone(index: DocumentIndex, query: SearchQuery) -> Hits:
    return tuple(index.search([query.vector], query.k, query.where, query.nprobe)[0])


def _work(
    index: DocumentIndex, query: SearchQuery, identity: RequestIdentity, holder: SharedIndex
) -> Work:
    # Never shared: an equal search that began before a change must not answer one that came after.
    make = partial(_engine, index)
    engine = identity.accelerator.own(index, "retrieval", make, holder=holder)
    return Work(engine, PrimitiveKind.SEARCHING, query)


def _engine(index: DocumentIndex) -> Engine:
    return RetrievalEngine(index)

"""Look at one state of an index, for as long as its lock is held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rag_accel.engine_api import Document, ScoredDocument
from rag_accel.engines.retrieval.index.documents import DocumentTable
from rag_accel.engines.retrieval.vectors.flat import FlatVectors
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors
from rag_accel.engines.retrieval.vectors.nearest import Hits
from rag_accel.engines.retrieval.vectors.vectors import SearchScope


@dataclass(frozen=True, slots=True)
class IndexView:
    """Hold vectors and documents that belong together.

    Valid inside the block of ``DocumentIndex.reading`` in which it was made; afterwards a change
    may be half done.

    Args:
        version: the index's version.
        vectors: its vectors; another object once clusters were trained.
        documents: its documents.
    """

    version: int
    vectors: FlatVectors | IvfVectors
    documents: DocumentTable

    def scope(self, where: Mapping[str, Any] | None, nprobe: int | None) -> SearchScope:
        """Return what a search with this filter may look at."""
        allowed = self.documents.matching(where)
        return SearchScope(
            len(self.documents) if allowed is None else len(allowed), allowed, nprobe
        )

    def scored(self, hits: Hits) -> list[ScoredDocument]:
        """Return the documents of these hits, best first, with metadata mappings of their own."""
        found: list[ScoredDocument] = []
        at = self.documents.by_label
        for label, score in zip(hits.labels.tolist(), hits.scores.tolist(), strict=True):
            one = at[label]
            found.append(ScoredDocument(Document(one.id, one.text, dict(one.metadata)), score))
        return found

"""Documents and vectors that change together: all of a change or nothing, even if interrupted.

Steps that take long or can fail come first: checking, copying, finding clusters. Then two parts:

1. New vectors are added, under labels that were never used before, and memory for others is taken.
   If this is broken off, by an interrupt or for want of memory, they are removed again: nothing has
   happened.
2. Vectors are replaced or removed, and the documents follow. Each of these steps may be done again,
   so if this is broken off, it is done again from its beginning: all has happened.

One assignment before each part records the progress of a change. The next caller sees there that a
change was broken off, and settles it before reading. Vectors change in place, in FAISS's memory: a
copy for each change would make a loop of one-document adds cost the square of the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rag_accel.engine_api import Document, ScoredDocument
from rag_accel.engines.retrieval.index.documents import DocumentTable, Intake, Labels
from rag_accel.engines.retrieval.vectors.flat import FlatVectors
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors
from rag_accel.engines.retrieval.vectors.nearest import Hits
from rag_accel.engines.retrieval.vectors.spec import Vectors
from rag_accel.engines.retrieval.vectors.vectors import Rows, SearchScope

NO_LABELS: Labels = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class State:
    """One state of an index: vectors and documents under the same labels.

    Args:
        vectors: under labels.
        documents: under the same labels.
        version: grows with each change.
        count: number of documents.
        next_label: above all labels that were ever given.
    """

    vectors: FlatVectors | IvfVectors
    documents: DocumentTable
    version: int = 0
    count: int = 0
    next_label: int = 0


@dataclass(frozen=True, slots=True)
class ContentChange:
    """A change that is prepared for one state.

    Args:
        added: vectors under new labels.
        replaced: vectors under known labels.
        removed: labels of documents to forget.
        intake: documents to store.
        after: the state that it leads to.
    """

    added: Rows | None
    replaced: Rows | None
    removed: Labels
    intake: Intake | None
    after: State

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing would change."""
        return self.intake is None and not len(self.removed)

    @property
    def num_changed(self) -> int:
        """Return how many documents come, go or change."""
        parts = (self.added, self.replaced, self.removed)
        return sum(len(rows) for rows in parts if rows is not None)


class Contents:
    """The state of an index. Not thread-safe; ``store.py`` says which calls may meet."""

    def __init__(self, vectors: FlatVectors | IvfVectors) -> None:
        self.state = State(vectors, DocumentTable())
        self._adding: ContentChange | None = None  # has come to its first part
        self._finishing: ContentChange | None = None  # has come to its second part

    @property
    def is_settled(self) -> bool:
        """Tell whether no change is under way or was broken off."""
        return self._adding is None and self._finishing is None

    def putting(
        self, documents: Sequence[Document], vectors: Vectors, clusters: Labels | None = None
    ) -> ContentChange:
        """Prepare to take documents, replacing known ids; ids must not repeat.

        ``clusters`` says where the vectors lay before; by default each goes to the nearest.
        """
        before = self.state
        intake = before.documents.intake(documents, before.next_label)
        if clusters is None:
            rows = before.vectors.rows(intake.labels, vectors)
        else:
            rows = Rows(intake.labels, vectors, clusters)
        num_new = int(np.count_nonzero(~intake.is_known))
        after = State(
            before.vectors,
            before.documents,
            before.version + 1,
            before.count + num_new,
            before.next_label + num_new,
        )
        added, replaced = rows.where(~intake.is_known), rows.where(intake.is_known)
        return ContentChange(added, replaced, NO_LABELS, intake, after)

    def removing(self, ids: Iterable[str]) -> ContentChange:
        """Prepare to forget the documents of these ids; unknown ids are ignored."""
        before = self.state
        labels = list(dict.fromkeys(before.documents.labels_of(ids)))
        after = replace(before, version=before.version + 1, count=before.count - len(labels))
        return ContentChange(None, None, np.asarray(labels, dtype=np.int64), None, after)

    def make(self, change: ContentChange) -> None:
        """Make a change that was prepared for the present state."""
        self._adding = change
        if change.added is not None:
            self.state.vectors.add(change.added)
        if change.replaced is not None:
            self.state.vectors.reserve(change.replaced)
        self._finishing = change
        self._finish(change)

    def settle(self) -> None:
        """Undo or finish a change that was broken off."""
        state = self.state
        if self._finishing is not None:
            state.documents.forget_filters()  # they may be what it failed at
            self._finish(self._finishing)
        elif self._adding is not None:
            added = self._adding.added
            state.vectors.remove(NO_LABELS if added is None else added.labels)
            self.state = replace(state, next_label=self._adding.after.next_label)
            self._adding = None

    def exchange(self, vectors: FlatVectors | IvfVectors) -> None:
        """Put another index of the same vectors in the place of the present one."""
        self.state = replace(self.state, vectors=vectors)

    def _finish(self, change: ContentChange) -> None:
        vectors, documents = self.state.vectors, self.state.documents
        if change.replaced is not None:
            vectors.replace(change.replaced)
        vectors.remove(change.removed)
        if change.intake is not None:
            documents.put(change.intake)
        documents.remove(change.removed.tolist())
        self.state = change.after
        self._adding = None  # before the other, which says that nothing is to be undone
        self._finishing = None


@dataclass(frozen=True, slots=True)
class IndexView:
    """Vectors and documents that belong together.

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
        allowed = self.documents.matching(where)
        return SearchScope(
            len(self.documents) if allowed is None else len(allowed), allowed, nprobe
        )

    def scored(self, hits: Hits) -> list[ScoredDocument]:
        """Return the documents of these hits, best first, with metadata mappings of their own."""
        found: list[ScoredDocument] = []
        at = self.documents.by_label
        for label, score in zip(hits.labels.tolist(), hits.scores.tolist(), strict=True):
            document = at[label]
            found.append(
                ScoredDocument(Document(document.id, document.text, dict(document.metadata)), score)
            )
        return found

"""The states of an index, and changes that are made whole or not at all, even if interrupted.

Steps that take long or can fail come first: checking, copying, finding clusters. Then two parts:

1. New vectors are added, under labels that were never used before, and memory for others is taken.
   If this is broken off, by an interrupt or for want of memory, they are removed again: nothing has
   happened.
2. Vectors are replaced or removed, and the documents follow. Each of these steps may be done again,
   so if this is broken off, it is done again from its beginning: all has happened.

Between the two, the assignment of the new state decides which of them it is. Vectors change in
place, in FAISS's memory: a copy for each change would make a loop of one-document adds cost the
square of the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
NO_ROWS = Rows(NO_LABELS, np.empty((0, 0), dtype=np.float32), NO_LABELS)


@dataclass(frozen=True, slots=True)
class State:
    """One state of an index: vectors and documents under the same labels.

    Valid until the next change is applied, so inside a block of ``DocumentIndex.reading``.

    Args:
        vectors: under labels; another object once clusters were trained.
        documents: under the same labels.
        version: grows with each change.
        count: number of documents.
        next_label: above all labels that were ever given.
    """

    vectors: FlatVectors | IvfVectors
    documents: DocumentTable = field(default_factory=DocumentTable)
    version: int = 0
    count: int = 0
    next_label: int = 0

    def scope(self, where: Mapping[str, Any] | None, nprobe: int | None) -> SearchScope:
        allowed = self.documents.matching(where)
        return SearchScope(self.count if allowed is None else len(allowed), allowed, nprobe)

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

    def putting(
        self, documents: Sequence[Document], vectors: Vectors, clusters: Labels | None = None
    ) -> ContentChange:
        """Prepare to take documents, replacing known ids; ids must not repeat.

        ``clusters`` says where the vectors lay before; by default each goes to the nearest.
        """
        intake = self.documents.intake(documents, self.next_label)
        if clusters is None:
            rows = self.vectors.rows(intake.labels, vectors)
        else:
            rows = Rows(intake.labels, vectors, clusters)
        added, replaced = rows.where(~intake.is_known), rows.where(intake.is_known)
        after = replace(
            self,
            version=self.version + 1,
            count=self.count + len(added),
            next_label=self.next_label + len(added),
        )
        return ContentChange(after, added, replaced, NO_LABELS, intake)

    def removing(self, ids: Iterable[str]) -> ContentChange:
        """Prepare to forget the documents of these ids; unknown ids are ignored."""
        labels = np.asarray([*dict.fromkeys(self.documents.labels_of(ids))], dtype=np.int64)
        after = replace(self, version=self.version + 1, count=self.count - len(labels))
        return ContentChange(after, NO_ROWS, NO_ROWS, labels, self.documents.intake(()))


@dataclass(frozen=True, slots=True)
class ContentChange:
    """A change that is prepared for one state.

    Args:
        after: the state that it leads to.
        added: vectors under new labels.
        replaced: vectors under known labels.
        removed: labels of documents to forget.
        intake: documents to store.
    """

    after: State
    added: Rows
    replaced: Rows
    removed: Labels
    intake: Intake

    @property
    def num_changed(self) -> int:
        """Return how many documents come, go or change."""
        return len(self.added) + len(self.replaced) + len(self.removed)

    def begin(self) -> None:
        """Do the first part."""
        self.after.vectors.add(self.added)
        self.after.vectors.reserve(self.replaced)

    def undo(self) -> None:
        """Undo the first part, wherever it was broken off."""
        self.after.vectors.remove(self.added.labels)

    def finish(self) -> None:
        """Do the second part, also again."""
        vectors, documents = self.after.vectors, self.after.documents
        vectors.replace(self.replaced)
        vectors.remove(self.removed)
        documents.put(self.intake)
        documents.remove(self.removed.tolist())

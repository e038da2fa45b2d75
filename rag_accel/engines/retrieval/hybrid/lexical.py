"""A lexical index: the documents of a vector index ranked by the words of a query (BM25).

A ranking is always that of a fresh index over the documents as they are: every document counts in
the statistics of all, so that any change of the documents makes the next search build it again.
That costs about 50 us of processor time for a document of 100 words (0.5 s for 10,000), half of it
for cutting texts into terms. It happens in a search, at most once, and holds up neither changes nor
searches by vector; searches that wait for the same state share one build. A loop that adds one
document between any two searches pays for all documents each time: add in batches.

Every (term, document) score is kept, 12 bytes for each term of each document, and a query adds up
those of its terms in float64, see ``hybrid/terms.py``. Texts that were deleted stay in memory,
never found, until the next build.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rag_accel.engine_api import ScoredDocument
from rag_accel.engines.retrieval.hybrid.lexical_spec import LexicalSpec
from rag_accel.engines.retrieval.hybrid.terms import Scores, TermScores, terms_of
from rag_accel.engines.retrieval.index.documents import DocumentTable, Labels
from rag_accel.engines.retrieval.index.store import DocumentIndex
from rag_accel.engines.retrieval.vectors.checks import check_count, check_filter, copy_document
from rag_accel.errors import ConfigError
from rag_accel.system.locks import RenewedLock

GROWTH = 4  # how many times more hits are ranked next when some were deleted meanwhile


class LexicalIndex:
    """A lexical search over the documents of an index, which follows its changes. Thread-safe.

    Args:
        index: holds the documents; changed through any path.
        spec: how to tokenise and score.
    """

    def __init__(self, index: DocumentIndex, spec: LexicalSpec | None = None) -> None:
        self._index = index
        self._spec = LexicalSpec() if spec is None else spec
        self._building = RenewedLock()
        self._snapshot: LexicalSnapshot | None = None

    @property
    def index(self) -> DocumentIndex:
        return self._index

    @property
    def spec(self) -> LexicalSpec:
        """Return the configuration; constant."""
        return self._spec

    def current(self) -> LexicalSnapshot:
        """Return the ranking of the documents as they are, building it if they have changed.

        Changes that come during the call may be in it or not; the next call sees them.
        """
        snapshot = self._snapshot
        if snapshot is not None and snapshot.version == self._index.version:
            return snapshot
        wanted = self._index.version
        with self._building.lock:
            # A search that waited here takes what was built meanwhile, if that is as new as the
            # search.
            snapshot = self._snapshot
            if snapshot is None or snapshot.version < wanted:
                snapshot = self._snapshot = _build(self._index, self._spec)
            return snapshot

    def search(
        self, texts: Sequence[str], k: int, where: Mapping[str, Any] | None = None
    ) -> list[list[ScoredDocument]]:
        """Return for each text the ``k`` documents that score highest, best first.

        Only documents that hold a term of the query are found, so an empty query, one without a
        known term and an empty index find nothing. Equal scores are ordered by insertion. A term
        counts as often as the query repeats it.

        Args:
            texts: the queries.
            k: how many to find at most; 0 and below find none.
            where: as in ``DocumentIndex.search``. ``k`` counts matching documents only; the
                statistics of the terms stay those of all documents.

        Returns:
            Hits with metadata mappings of the caller's own. A document that is deleted while this
            runs is left out and the next one takes its place; one that is replaced is found as it
            was.

        Raises:
            ConfigError: a text is no string, or ``k`` or ``where`` is of another type.
        """
        if isinstance(texts, str):  # its letters would pass for queries
            raise ConfigError("bad queries", where="texts", found="one text", valid="several texts")
        for place, text in enumerate(texts):
            check_text(text, f"texts[{place}]")
        check_count(k)
        check_filter(where, None)
        snapshot = self.current()
        return [self._search(snapshot, text, k, where) for text in texts]

    def _search(
        self, snapshot: LexicalSnapshot, text: str, k: int, where: Mapping[str, Any] | None
    ) -> list[ScoredDocument]:
        count = k
        while True:
            hits = snapshot.search(text, count, where)
            alive = living(self._index, snapshot.version, hits)
            if len(alive) >= k or len(hits) < count:
                return alive[: max(0, k)]
            count *= GROWTH


@dataclass(frozen=True, slots=True)
class LexicalSnapshot:
    """A lexical ranking of the documents of one version of an index. Never changes.

    Args:
        version: of the index.
        spec: how queries are tokenised.
        documents: under labels 0, 1, ... by insertion.
        scores: of the terms in the documents.
    """

    version: int
    spec: LexicalSpec
    documents: DocumentTable = field(repr=False)
    scores: TermScores = field(repr=False)

    def search(
        self, text: str, k: int, where: Mapping[str, Any] | None = None
    ) -> list[ScoredDocument]:
        """Return the ``k`` documents that score highest; like ``LexicalIndex.search`` for one text.

        Raises:
            ConfigError: the text is no string, or ``k`` or ``where`` is of another type.
        """
        check_text(text, "text")
        check_count(k)
        check_filter(where, None)
        scores = self.scores.of_query(terms_of(text, self.spec)) if k > 0 else None
        if scores is None:
            return []
        best = _best(scores, k, self.documents.matching(where))
        return [ScoredDocument(copy_document(self.documents[i]), float(scores[i])) for i in best]


def living(
    index: DocumentIndex, version: int, hits: Sequence[ScoredDocument]
) -> list[ScoredDocument]:
    """Return the hits, found at ``version``, whose documents the index still holds."""
    if index.version == version:
        return list(hits)
    present = {document.id for document in index.get([hit.document.id for hit in hits])}
    return [hit for hit in hits if hit.document.id in present]


def check_text(text: object, where: str) -> None:
    """Raise ConfigError unless ``text`` is a string."""
    if not isinstance(text, str):
        raise ConfigError(
            "a query that is no text", where=where, found=type(text).__name__, valid="a string"
        )


def _build(index: DocumentIndex, spec: LexicalSpec) -> LexicalSnapshot:
    with index.reading():
        view = index.view()
        version, documents = view.version, view.documents.in_order()
    table = DocumentTable()
    table.put(table.intake(documents))
    scores = TermScores.of((document.text for document in documents), spec)
    return LexicalSnapshot(version, spec, table, scores)


def _best(scores: Scores, k: int, allowed: Labels | None) -> list[int]:
    """Return the places of the ``k`` highest positive scores; equal scores by place."""
    if allowed is None:
        found = np.flatnonzero(scores > 0)
    else:
        allowed = np.sort(allowed)
        found = allowed[scores[allowed] > 0]
    values = scores[found]
    if k < len(found):
        is_kept = values >= np.partition(values, len(values) - k)[len(values) - k]
        found, values = found[is_kept], values[is_kept]
    return found[np.argsort(-values, kind="stable")[:k]].tolist()

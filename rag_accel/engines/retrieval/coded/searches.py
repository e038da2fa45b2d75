"""Searches of a large index by its 8-bit codes: FAISS reads a quarter of the memory.

The results are those of ``DocumentIndex.search``, in ids, order and scores: codes only say which
vectors can be among the nearest, and the vectors decide.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rag_accel.clock import Clock
from rag_accel.engine_api import ScoredDocument
from rag_accel.engines.retrieval.coded.codes import CodedVectors
from rag_accel.engines.retrieval.coded.kept_codes import KeptCodes
from rag_accel.engines.retrieval.index.contents import IndexView
from rag_accel.engines.retrieval.index.store import DocumentIndex
from rag_accel.engines.retrieval.search_request import Search, grouped
from rag_accel.engines.retrieval.vectors.nearest import (
    nearest,
)


class CodedSearches:
    """Searches by codes, one by one or in crowds. Used on one thread; the index may change.

    Args:
        index: the index to search.
        clock: measures the time that encoding takes.
        max_code_bytes: most memory for the codes.
    """

    def __init__(self, index: DocumentIndex, clock: Clock, max_code_bytes: int) -> None:
        self.kept = KeptCodes(index, clock, max_code_bytes)
        self._index = index

    def search(self, crowd: Sequence[Search]) -> list[list[ScoredDocument]] | None:
        """Return the results of searches with equal filters; None if there are no codes now."""
        with self._index.reading():
            view = self._index.view()
            codes = self.kept.codes(view)
            if codes is None:
                return None
            places = {search.id: place for place, search in enumerate(crowd)}
            found: list[list[ScoredDocument]] = [[]] * len(crowd)
            for group in grouped(crowd, Search.group_key):
                for search, hits in zip(group, _searched(view, codes, group), strict=True):
                    found[places[search.id]] = hits
            return found

    def close(self) -> None:
        """Forget the codes."""
        self.kept.close()


def _searched(
    view: IndexView, codes: CodedVectors, group: Sequence[Search]
) -> list[list[ScoredDocument]]:
    query = group[0].query
    queries = np.stack([search.vector for search in group])
    scope = view.scope(query.where, query.nprobe)
    ks = [search.query.k for search in group]
    hits = nearest(view.vectors, queries, ks, scope, codes)
    return [view.scored(hit) for hit in hits]

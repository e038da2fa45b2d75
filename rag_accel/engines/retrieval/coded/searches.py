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
from rag_accel.engines.retrieval.vectors.nearest import nearest

MIN_NUMBERS = 1 << 24  # of an index; below, a whole search takes FAISS a fraction of a millisecond
# Numbers that a search reads; twice as many gave 16 searches 1.4 times the speed.
MIN_READ = 1 << 18
# Numbers that a crowd of searches reads: above, it takes 0.45 to 1.02 of the time by codes; below,
# 1 to 1.07 (``codes_*`` of the suite ``ablation``, vectors of 256 numbers).
MIN_CROWD_READ = 1 << 23
MIN_SEARCHES = 8  # before codes are made: a program that searches once or twice needs none
MAX_CODE_BYTES = 4 << 30


class CodedSearches:
    """Searches by codes where that pays. Used on one thread; the index may change.

    A crowd is searches with equal filters; ``k`` and ``nprobe`` may differ. No codes are made
    before ``MIN_SEARCHES`` on an index with clusters and at least ``MIN_NUMBERS`` numbers, of which
    each read ``MIN_READ`` and its crowd ``MIN_CROWD_READ``; then they are made in the background.

    Args:
        index: the index to search.
        clock: measures the time that encoding takes.
        max_code_bytes: most memory for the codes.
    """

    def __init__(self, index: DocumentIndex, clock: Clock, max_code_bytes: int) -> None:
        self.kept = KeptCodes(index, clock, max_code_bytes)
        self._index = index
        self._seen = 0

    def pays(self, num_searches: int, compared: int) -> bool:
        """Tell whether the index is large, and a crowd reads, enough to go by codes.

        ``compared`` is the number of vectors that all of them together are compared with.
        """
        dimension = self._index.spec.dimension
        is_large = len(self._index) * dimension >= MIN_NUMBERS
        return is_large and compared * dimension >= max(MIN_READ * num_searches, MIN_CROWD_READ)

    def see(self, crowd: Sequence[Search]) -> None:
        """Count a crowd that ``pays``; request codes once enough of them have come."""
        self._seen = min(self._seen + len(crowd), MIN_SEARCHES)
        if self._seen < MIN_SEARCHES:
            return
        with self._index.reading():
            view = self._index.view()
            if self.kept.codes(view) is None:
                self.kept.want(view)

    def search(self, crowd: Sequence[Search]) -> list[list[ScoredDocument]] | None:
        """Return the results of a crowd; None if there are no codes of the index as it is now."""
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

"""A planner that sends searches of a large clustered index that read enough through its codes.

Results are the same with codes and without. Codes are made in the background once enough searches
would have used them.
"""

from __future__ import annotations

from collections.abc import Sequence

from rag_accel.clock import Clock
from rag_accel.engine_api import ScoredDocument
from rag_accel.engines.retrieval.coded.searches import CodedSearches
from rag_accel.engines.retrieval.index.store import DocumentIndex
from rag_accel.engines.retrieval.search_request import Search

MIN_NUMBERS = 1 << 24  # of an index; below, a whole search takes FAISS a fraction of a millisecond
# Numbers that a search reads; twice as many gave 16 searches 1.4 times the speed.
MIN_READ = 1 << 18
# Numbers that a crowd of searches reads: above, it takes 0.45 to 1.02 of the time by codes; below,
# 1 to 1.07 (``codes_*`` of the suite ``ablation``, vectors of 256 numbers).
MIN_CROWD_READ = 1 << 23
MIN_SEARCHES = 8  # before codes are made: a program that searches once or twice needs none
MAX_CODE_BYTES = 4 << 30


class SearchPlanner:
    """Searches by codes where that pays. Used on one thread; the index may change.

    A crowd is searches with equal filters; ``k`` and ``nprobe`` may differ. No codes are made
    before ``MIN_SEARCHES`` on an index with clusters and at least ``MIN_NUMBERS`` numbers, of which
    each read ``MIN_READ`` and its crowd ``MIN_CROWD_READ``.

    Args:
        index: the index to search.
        clock: measures the time that encoding takes.
        max_code_bytes: most memory for the codes.
    """

    def __init__(self, index: DocumentIndex, clock: Clock, max_code_bytes: int) -> None:
        self.coded = CodedSearches(index, clock, max_code_bytes)
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
            if self.coded.kept.codes(view) is None:
                self.coded.kept.want(view)

    def search(self, crowd: Sequence[Search]) -> list[list[ScoredDocument]] | None:
        """Return the results by codes; None if there are none of the index as it is now."""
        return self.coded.search(crowd)

    def close(self) -> None:
        """Forget the codes."""
        self.coded.close()

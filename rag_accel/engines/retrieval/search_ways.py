"""Choose, of the ways to search a large index with clusters, the one measured to be the fastest.

Both ways return the same. Codes are made in the background once searches have shown that they would
be of use.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from rag_accel.clock import Clock
from rag_accel.engine_api import ScoredDocument
from rag_accel.engines.retrieval.coded_searches import CodedSearches
from rag_accel.engines.retrieval.crossover import Crossover, Way
from rag_accel.engines.retrieval.search_request import Search
from rag_accel.engines.retrieval.store import DocumentIndex

MIN_NUMBERS = 1 << 24  # of an index; below, a whole search takes FAISS a fraction of a millisecond
# Numbers that a search reads; twice as many gave 16 searches 1.4 times the speed.
MIN_READ = 1 << 18
MIN_SEARCHES = 8  # before codes are made: a program that searches once or twice needs none
MAX_CODE_BYTES = 4 << 30


class SearchWays:
    """Search by codes where that pays. Used on one thread; the index may change.

    A crowd is searches with equal filters; ``k`` and ``nprobe`` may differ. Nothing is held before
    ``MIN_SEARCHES`` on an index with clusters and at least ``MIN_NUMBERS`` numbers of which each
    read ``MIN_READ``.

    Args:
        index: what to search.
        clock: measures what crowds cost.
        max_code_bytes: most memory for the codes.
    """

    def __init__(self, index: DocumentIndex, clock: Clock, max_code_bytes: int) -> None:
        self.coded = CodedSearches(index, clock, max_code_bytes)
        self._index = index
        self._crossover = Crossover()
        self._has_codes = False
        self._seen = 0

    def pays(self, num_searches: int, compared: int) -> bool:
        """Tell whether the index is large, and the searches read, enough to look closer.

        ``compared`` is the number of vectors that all of them together are compared with.
        """
        dimension = self._index.spec.dimension
        is_large = len(self._index) * dimension >= MIN_NUMBERS
        return is_large and compared * dimension >= MIN_READ * num_searches

    def see(self, crowd: Sequence[Search]) -> None:
        """Take note of a crowd that ``pays``; asks for codes where they would be of use by now."""
        self._seen = min(self._seen + len(crowd), MIN_SEARCHES)
        if self._seen < MIN_SEARCHES:
            return
        with self._index.reading():
            view = self._index.view()
            if self.coded.kept.codes(view) is None:
                self.coded.kept.want(view)

    def way(self, crowd: Sequence[Search], compared: int) -> Way:
        """Return how a crowd that ``pays`` is searched next."""
        with self._index.reading():
            self._has_codes = self.coded.kept.codes(self._index.view()) is not None
        ways = [Way.EACH, Way.CODED] if self._has_codes else [Way.EACH]
        return self._crossover.choose(_kind(crowd, compared), _size(crowd), ways)

    def observe(self, crowd: Sequence[Search], compared: int, way: Way, seconds: float) -> None:
        """Take what a crowd cost; only what was measured while there were codes counts."""
        if self._has_codes and compared > 0:
            kind, each_s = _kind(crowd, compared), seconds / compared
            self._crossover.observe(kind, _size(crowd), way, each_s)

    def search(self, crowd: Sequence[Search]) -> list[list[ScoredDocument]] | None:
        """Return the results by codes; None if the index has changed since ``way``."""
        return self.coded.search(crowd)

    def close(self) -> None:
        """Forget the codes."""
        self.coded.close()


def _size(crowd: Sequence[Search]) -> int:
    return len(crowd).bit_length()


def _kind(crowd: Sequence[Search], compared: int) -> Hashable:
    """Return what crowds have in common that cost about the same for each comparison.

    Threads make every way faster: their number does not count.
    """
    each = compared // len(crowd)
    return each.bit_length(), bool(crowd[0].query.where)

"""Choose, of the ways to search a large index with clusters, the one measured to be the fastest.

Both ways return the same. Codes are made in the background once searches have shown that they would
be of use.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from statistics import median

from rag_accel.clock import Clock
from rag_accel.engine_api import ScoredDocument
from rag_accel.engines.retrieval.coded.codes import CodedSearches
from rag_accel.engines.retrieval.index.store import DocumentIndex
from rag_accel.engines.retrieval.search_request import Search

# Learn from searches as they run which way of doing them is the fastest, for each kind.

TRIALS = 3  # of each way, before one is preferred
WINDOW = 5  # latest observations that count
HYSTERESIS = 0.9  # the other way must take less than this share of the preferred one's time


class Way(enum.Enum):
    """Name how a crowd of searches is done."""

    EACH = "each"  # FAISS over the vectors
    CODED = "coded"  # FAISS over 8-bit codes; candidates are checked


@dataclass(slots=True)
class _SearchKind:
    costs: dict[Way, deque[float]] = field(
        default_factory=lambda: {way: deque[float](maxlen=WINDOW) for way in Way}
    )
    counts: dict[Way, int] = field(default_factory=lambda: dict.fromkeys(Way, 0))
    preferred: Way = Way.EACH

    @property
    def is_telling(self) -> bool:
        """Tell whether the preferred way is known to be better than another."""
        return sum(count > TRIALS for count in self.counts.values()) > 1

    def settled(self, ways: Collection[Way]) -> bool:
        """Tell whether all of these ways were seen often enough to prefer one of them."""
        return self.preferred in ways and all(self.counts[way] > TRIALS for way in ways)


class WayChooser:
    """Choose the way for crowds of one kind and size; each way is tried ``TRIALS`` times, in turn.

    The trials are real searches, so nothing is searched in vain, and what is measured is the
    user's own queries and numbers of clusters. The first time of a way does not count: it may have
    to bring memory into use. Afterwards only a clear difference changes the preference. What was
    learnt outlives changes of the index: costs are those of one comparison.

    A large crowd that goes the wrong way a few times would be felt, so a size that is met first
    learns from smaller ones of its kind: codes pay the more, the larger the crowd. Where ``CODED``
    was found better than ``EACH``, larger crowds do not try ``EACH``.
    """

    def __init__(self) -> None:
        self._kinds: dict[Hashable, dict[int, _SearchKind]] = {}

    def choose(self, kind: Hashable, size: int, ways: Sequence[Way]) -> Way:
        """Return the way, of ``ways``, that a crowd of this kind and size class goes next."""
        state = self._state(kind, size)
        if state.settled(ways):
            return state.preferred
        for other_size, other in self._kinds[kind].items():
            is_known = other_size < size and other.is_telling and other.preferred is Way.CODED
            if is_known and Way.CODED in ways:
                return Way.CODED
        return min(ways, key=lambda way: state.counts[way])  # of equals the first

    def observe(self, kind: Hashable, size: int, way: Way, cost: float) -> None:
        """Take what such a crowd cost, in seconds for each comparison asked for."""
        state = self._state(kind, size)
        state.counts[way] += 1
        if state.counts[way] == 1:
            return
        state.costs[way].append(cost)
        known = {each: median(seen) for each, seen in state.costs.items() if len(seen) >= TRIALS}
        best = min(known, key=lambda each: known[each], default=way)
        if known.get(best, math.inf) < HYSTERESIS * known.get(state.preferred, math.inf):
            state.preferred = best

    def _state(self, kind: Hashable, size: int) -> _SearchKind:
        return self._kinds.setdefault(kind, {}).setdefault(size, _SearchKind())


MIN_NUMBERS = 1 << 24  # of an index; below, a whole search takes FAISS a fraction of a millisecond
# Numbers that a search reads; twice as many gave 16 searches 1.4 times the speed.
MIN_READ = 1 << 18
MIN_SEARCHES = 8  # before codes are made: a program that searches once or twice needs none
MAX_CODE_BYTES = 4 << 30


class SearchPlanner:
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
        self._crossover = WayChooser()
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

"""Learn from searches as they run which way of doing them is the fastest, for each kind."""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from statistics import median

TRIALS = 3  # of each way, before one is preferred
WINDOW = 5  # latest observations that count
HYSTERESIS = 0.9  # the other way must take less than this share of the preferred one's time


class Way(enum.Enum):
    """Name how a crowd of searches is done."""

    EACH = "each"  # FAISS over the vectors
    CODED = "coded"  # FAISS over 8-bit codes; candidates are checked


@dataclass(slots=True)
class _Kind:
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


class Crossover:
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
        self._kinds: dict[Hashable, dict[int, _Kind]] = {}

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

    def _state(self, kind: Hashable, size: int) -> _Kind:
        return self._kinds.setdefault(kind, {}).setdefault(size, _Kind())

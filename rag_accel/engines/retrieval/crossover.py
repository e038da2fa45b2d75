"""Learn from searches as they run which of two ways of doing them is faster, for each kind."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median

TRIALS = 3  # of each way, before one is preferred
WINDOW = 5  # latest observations that count
HYSTERESIS = 0.9  # the other way must take less than this share of the preferred one's time


class Way(enum.Enum):
    """Name how a crowd of searches is done."""

    EACH = "each"  # FAISS, query by query
    SHARED = "shared"  # one scan of the codes for all


@dataclass(slots=True)
class _Kind:
    costs: dict[Way, deque[float]] = field(
        default_factory=lambda: {way: deque[float](maxlen=WINDOW) for way in Way}
    )
    counts: dict[Way, int] = field(default_factory=lambda: dict.fromkeys(Way, 0))
    preferred: Way = Way.EACH

    @property
    def is_tried(self) -> bool:
        """Tell whether both ways were seen often enough to prefer one."""
        return min(self.counts.values()) > TRIALS


class Crossover:
    """Choose the way for crowds of one kind and size; each way is tried ``TRIALS`` times, in turn.

    The trials are real searches, so nothing is searched in vain, and what is measured is the
    user's own queries, numbers of clusters and threads. The first time of a way does not count: it
    may have to bring memory into use. Afterwards only a clear difference changes the preference.

    Sharing pays the more, the larger the crowd. So a size that is met first does as a smaller one
    that was found to share, or a larger one that was found not to, without trials: a large crowd
    that goes the wrong way a few times would be felt.
    """

    def __init__(self) -> None:
        self._kinds: dict[Hashable, dict[int, _Kind]] = {}

    def choose(self, kind: Hashable, size: int) -> Way:
        """Return the way that a crowd of this kind and size class goes next."""
        state = self._state(kind, size)
        if state.is_tried:
            return state.preferred
        for other_size, other in self._kinds[kind].items():
            if other.is_tried and other.preferred is (
                Way.SHARED if other_size < size else Way.EACH
            ):
                return other.preferred
        return min(Way, key=lambda way: state.counts[way])  # of equals the first: EACH

    def observe(self, kind: Hashable, size: int, way: Way, cost: float) -> None:
        """Take what such a crowd cost, in seconds for each comparison asked for."""
        state = self._state(kind, size)
        state.counts[way] += 1
        if state.counts[way] == 1:
            return
        state.costs[way].append(cost)
        if all(len(costs) >= TRIALS for costs in state.costs.values()):
            other = Way.SHARED if state.preferred is Way.EACH else Way.EACH
            costs = {each: median(state.costs[each]) for each in Way}
            if costs[other] < HYSTERESIS * costs[state.preferred]:
                state.preferred = other

    def forget(self) -> None:
        """Measure again."""
        self._kinds.clear()

    def _state(self, kind: Hashable, size: int) -> _Kind:
        return self._kinds.setdefault(kind, {}).setdefault(size, _Kind())

"""A policy that goes by the requests that wait, and behind them by a learnt half-life."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from rag_accel.errors import ConfigError
from rag_accel.kv.eviction.half_life import DecayedCounts, HalfLifeDuel
from rag_accel.kv.eviction.priorities import Priority, PriorityPolicy
from rag_accel.kv.eviction.window import RequestWindow

#: Requests in which a count of uses halves; from nearly least recently to least frequently used.
HALF_LIVES = (4.0, 32.0, 1000.0)


class LookaheadPolicy(PriorityPolicy):
    """First the states that no request reads which runs or waits, by decayed counts of their uses.

    Behind them those that are read, the latest next use first, as an optimal cache would. Counts
    halve every so many requests; which half-life rules is learnt as the program runs, from shadow
    caches that hold a sample of the keys. Counts of evicted states are remembered. While no request
    was told by ``began``, each use counts as one.

    Differs from LACR (DepCache section 4.2.2): next uses are exact and outrank counts, and counts
    age, so that yesterday's favourites give way.

    Args:
        window: most waiting requests that are looked at.
        half_lives: among which the policy chooses, in requests.
        one_in: how many keys there are to each in the shadow caches.
        remembered: most evicted states whose counts are remembered, some 300 bytes each.

    Raises:
        ConfigError: if a number is out of range.
    """

    def __init__(
        self,
        window: int = 16,
        half_lives: Sequence[float] = HALF_LIVES,
        one_in: int = 8,
        remembered: int = 1 << 16,
    ) -> None:
        _check(half_lives, one_in, remembered)
        super().__init__()
        self._window = RequestWindow(window + 1)
        self._counts = DecayedCounts(half_lives, remembered)
        self._duel = HalfLifeDuel(len(half_lives), one_in)
        self._places = range(len(half_lives))
        self._half_lives = tuple(half_lives)
        self._sizes: dict[bytes, int] = {}
        self._held_bytes = self._most_bytes = 0
        self._now = 0
        self._is_told = False

    @property
    def half_life(self) -> float:
        """Return the half-life that rules now, in requests."""
        return self._half_lives[self._duel.leader]

    def added(self, key: bytes, nbytes: int, parent: bytes | None = None) -> None:
        self._sizes[key] = nbytes
        self._held_bytes += nbytes
        self._most_bytes = max(self._most_bytes, self._held_bytes)
        self._counts.use(key, self._now)
        super().added(key, nbytes, parent)
        self._read(key)

    def used(self, key: bytes) -> None:
        super().used(key)
        self._counts.use(key, self._now)
        self._read(key)

    def removed(self, key: bytes) -> None:
        self._held_bytes -= self._sizes.pop(key)
        self._counts.evict(key)
        super().removed(key)

    def began(self, requests: Sequence[Collection[bytes]]) -> None:
        self._is_told = True
        self._tick()
        for key in self._window.replace(requests):
            self._lowered(key)

    def _read(self, key: bytes) -> None:
        if self._duel.is_sampled(key):
            ranks = [self._counts.rank(key, place) for place in self._places]
            self._duel.read(key, self._sizes[key], ranks, self._most_bytes)
        if not self._is_told:
            self._tick()

    def _tick(self) -> None:
        self._now += 1
        if self._duel.ended():
            self._reorder()

    def _priority(self, key: bytes) -> Priority:
        uses = self._window.uses(key)
        rank = self._counts.rank(key, self._duel.leader)
        return (-uses[0] if uses else -math.inf, rank)


def _check(half_lives: Sequence[float], one_in: int, remembered: int) -> None:
    if not half_lives or not all(0 < half_life < math.inf for half_life in half_lives):
        raise ConfigError(
            "bad half-lives",
            where="half_lives",
            found=tuple(half_lives),
            valid="one or more, each above 0 requests",
        )
    if one_in < 1:
        raise ConfigError("bad sample", where="one_in", found=one_in, valid="1 or more")
    if remembered < 0:
        raise ConfigError("bad memory", where="remembered", found=remembered, valid="0 or more")

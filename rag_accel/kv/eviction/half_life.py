"""Decayed counts of uses, and a half-life for them that is learnt from what would have been hit."""

from __future__ import annotations

import math
import zlib
from collections import OrderedDict
from collections.abc import Sequence

from rag_accel.kv.eviction.priorities import Priority, PriorityPolicy

#: Weight of the latest request in a shadow cache's hit rate.
_NEWEST = 0.03
#: Requests between two choices of the half-life; each may reorder all states.
_TURN = 8


class DecayedCounts:
    """Counts of uses that halve every so many requests (LRFU), at several half-lives at once.

    A count is compared as log2(count) + (request of its last use) / half-life: that order is the
    one of the decayed counts at any time, so nothing changes until a key is used.

    Args:
        half_lives: in requests.
        remembered: most keys whose counts are remembered after they were evicted, the latest.
    """

    def __init__(self, half_lives: Sequence[float], remembered: int) -> None:
        self._half_lives = tuple(half_lives)
        self._most = remembered
        #: of a key: request of its last use, then its count at each half-life
        self._kept: dict[bytes, list[float]] = {}
        self._evicted: OrderedDict[bytes, list[float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept) + len(self._evicted)

    def use(self, key: bytes, now: int) -> None:
        """Count a use by request number ``now`` of a key that is kept from now on."""
        counts = self._kept.get(key) or self._evicted.pop(key, None)
        if counts is None:
            self._kept[key] = [now, *(1.0 for _ in self._half_lives)]
            return
        age = now - counts[0]
        counts[0] = now
        for place, half_life in enumerate(self._half_lives, 1):
            counts[place] = 1.0 + counts[place] * math.exp2(-age / half_life)
        self._kept[key] = counts

    def evict(self, key: bytes) -> None:
        """Remember a kept key as one that was evicted."""
        self._evicted[key] = self._kept.pop(key)
        if len(self._evicted) > self._most:
            self._evicted.popitem(last=False)

    def rank(self, key: bytes, place: int) -> float:
        """Return what a kept key's count at a half-life is compared by."""
        counts = self._kept[key]
        return math.log2(counts[place + 1]) + counts[0] / self._half_lives[place]


class HalfLifeDuel:
    """Shadow caches, one a half-life, of a sample of all keys; the one with the most hits leads.

    A shadow holds keys and sizes, no states. Its bytes are those of the cache it stands for, over
    ``one_in``, as are its keys, which a hash chooses.

    Args:
        num: of shadows.
        one_in: how many keys there are to each that is sampled.
    """

    def __init__(self, num: int, one_in: int) -> None:
        self._shadows = [_Shadow() for _ in range(num)]
        self._one_in = one_in
        self._rates = [0.0] * num
        self._hit_bytes = [0] * num
        self._read_bytes = 0
        self._num_requests = 0
        #: place of the half-life whose shadow had the best hit rate lately
        self.leader = 0

    def is_sampled(self, key: bytes) -> bool:
        return zlib.crc32(key) % self._one_in == 0

    def read(self, key: bytes, nbytes: int, ranks: Sequence[float], limit_bytes: int) -> None:
        """Read a sampled key in every shadow, of a cache of so many bytes in all."""
        self._read_bytes += nbytes
        for place, (shadow, rank) in enumerate(zip(self._shadows, ranks, strict=True)):
            if shadow.read(key, nbytes, rank, limit_bytes // self._one_in):
                self._hit_bytes[place] += nbytes

    def ended(self) -> bool:
        """Count what one request read, and tell whether another half-life leads from now on."""
        if not self._read_bytes:
            return False
        for place, nbytes in enumerate(self._hit_bytes):
            self._rates[place] += _NEWEST * (nbytes / self._read_bytes - self._rates[place])
        self._hit_bytes = [0] * len(self._shadows)
        self._read_bytes = 0
        self._num_requests += 1
        before = self.leader
        if self._num_requests % _TURN == 0:
            best = max(self._rates)
            if self._rates[before] < best:
                self.leader = self._rates.index(best)
        return self.leader != before


class _Shadow(PriorityPolicy):
    """Keys that a cache would hold if it went by one half-life alone."""

    def __init__(self) -> None:
        super().__init__()
        self._ranks: dict[bytes, float] = {}
        self._sizes: dict[bytes, int] = {}
        self._held_bytes = 0

    def read(self, key: bytes, nbytes: int, rank: float, limit_bytes: int) -> bool:
        """Read a key, keep it if it ranks high enough, and tell whether it was there."""
        is_hit = key in self
        self._ranks[key] = rank
        if not is_hit:
            self._sizes[key] = nbytes
            self._held_bytes += nbytes
            self.added(key, nbytes)
        while self._held_bytes > limit_bytes:
            victim = self.victim()
            self._held_bytes -= self._sizes.pop(victim)
            del self._ranks[victim]
            self.removed(victim)
        return is_hit

    def _priority(self, key: bytes) -> Priority:
        return (self._ranks[key],)

"""Eviction policies to compare with: counts, raw or aged by a clock, and knowledge of the future.

All evict leaves of trees alone, as ours do.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence

from rag_accel.errors import ConfigError
from rag_accel.kv.eviction import LRUPolicy, PriorityPolicy
from rag_accel.kv.eviction.priorities import Priority
from rag_accel.kv.eviction.window import RequestWindow


class LFUPolicy(LRUPolicy):
    """The state with the fewest uses since it was added first, the least recently used of those.

    What the running request reads goes last, or new states would evict each other.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[bytes, int] = {}
        self._window = RequestWindow(1)

    def removed(self, key: bytes) -> None:
        """Learn that a state is no longer kept; its count is forgotten."""
        del self._counts[key]
        super().removed(key)

    def began(self, requests: Sequence[Collection[bytes]]) -> None:
        """Learn that a request begins, and which keys it and those behind it read."""
        for key in self._window.replace(requests):
            self._lowered(key)

    def _use(self, key: bytes) -> None:
        super()._use(key)
        self._counts[key] = self._counts.get(key, 0) + 1

    def _is_running(self, key: bytes) -> bool:
        uses = self._window.uses(key)
        return bool(uses) and uses[0] == self._window.first

    def _priority(self, key: bytes) -> Priority:
        return (self._is_running(key), self._counts[key], self._last[key])


class LACRPolicy(LFUPolicy):
    """Locality-aware cache replacement (DepCache section 4.2.2, Eq. 6).

    The priority of a state is alpha * its uses since it was added + (1 - alpha) * the sum over the
    requests that read it of (size - position) / size: the running one is at position 0, and size is
    ``window`` + 1. Counts are raw, as printed, and never age. What the running request reads goes
    last.

    Args:
        alpha: weight of the past, from 0 to 1.
        window: most waiting requests that count.

    Raises:
        ConfigError: if ``alpha`` is outside [0, 1] or ``window`` below 0.
    """

    def __init__(self, alpha: float = 0.2, window: int = 16) -> None:
        if not 0 <= alpha <= 1:
            raise ConfigError("bad weight of the past", where="alpha", found=alpha, valid="0 to 1")
        super().__init__()
        self._alpha = alpha
        self._window = RequestWindow(window + 1)

    def _priority(self, key: bytes) -> Priority:
        running, count, last = super()._priority(key)
        size, first = self._window.size, self._window.first
        future = sum((size - (number - first)) / size for number in self._window.uses(key))
        return (running, self._alpha * count + (1 - self._alpha) * future, last)


class PGDSFPolicy(LFUPolicy):
    """Prefix-aware greedy-dual-size-frequency (RAGCache section 5.1) on states of tokens.

    The priority of a state at its use is clock + frequency x cost / size, and the clock is the
    priority of what was evicted last. To compute a token again costs about the same wherever it
    stands in a short tree, so cost / size is 1. What the running request reads goes last.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[bytes, float] = {}
        self._clock = 0.0

    def removed(self, key: bytes) -> None:
        """Learn that a state is no longer kept, and set the clock."""
        self._clock = max(self._clock, self._known.pop(key))
        super().removed(key)

    def _use(self, key: bytes) -> None:
        super()._use(key)
        self._known[key] = self._clock + self._counts[key]

    def _priority(self, key: bytes) -> tuple[float, ...]:
        return (self._is_running(key), self._known[key], self._last[key])


class BeladyPolicy(PriorityPolicy):
    """The state that is read again latest, or never, first. It is told every request beforehand.

    Args:
        stream: the keys that each request reads, in the order in which they begin.
    """

    def __init__(self, stream: Sequence[Collection[bytes]]) -> None:
        super().__init__()
        self._uses: dict[bytes, deque[int]] = {}
        for number, keys in enumerate(stream):
            for key in dict.fromkeys(keys):
                self._uses.setdefault(key, deque()).append(number)

    def used(self, key: bytes) -> None:
        """Learn that a kept state was used."""

    def began(self, requests: Sequence[Collection[bytes]]) -> None:
        """Learn that the next request begins; what it reads is read again later or never."""
        for key in dict.fromkeys(requests[0]):
            self._uses[key].popleft()
            self._lowered(key)

    def _priority(self, key: bytes) -> tuple[float, ...]:
        uses = self._uses[key]
        return (-uses[0] if uses else -math.inf,)

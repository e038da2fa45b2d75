"""Eviction policies to compare with: counts aged by a clock, and knowledge of the future.

Both evict leaves of trees alone, as ours do.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence

from rag_accel.kv.eviction import LFUPolicy, PriorityPolicy


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

"""Policies that go by recency, by counts, and by counts and the requests that wait."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rag_accel.errors import ConfigError
from rag_accel.kv.eviction.priorities import Priority, PriorityPolicy
from rag_accel.kv.eviction.window import RequestWindow


class LRUPolicy(PriorityPolicy):
    """The least recently used state first; a state that was never used counts from its addition."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[bytes, int] = {}
        self._num_uses = 0

    def added(self, key: bytes, nbytes: int, parent: bytes | None = None) -> None:
        """Learn that a state of so many bytes is kept from now on, behind its parent."""
        self._use(key)
        super().added(key, nbytes, parent)

    def used(self, key: bytes) -> None:
        """Learn that a kept state was used."""
        super().used(key)
        self._use(key)

    def removed(self, key: bytes) -> None:
        """Learn that a state is no longer kept."""
        del self._last[key]
        super().removed(key)

    def began(self, requests: Sequence[Collection[bytes]]) -> None:
        """Learn that a request begins: no news to a policy that goes by the past alone."""

    def _use(self, key: bytes) -> None:
        self._last[key] = self._num_uses
        self._num_uses += 1

    def _priority(self, key: bytes) -> Priority:
        return (self._last[key],)


class LFUPolicy(LRUPolicy):
    """The state with the fewest uses since it was added first, the least recently used of those."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[bytes, int] = {}

    def removed(self, key: bytes) -> None:
        """Learn that a state is no longer kept; its count is forgotten."""
        del self._counts[key]
        super().removed(key)

    def _use(self, key: bytes) -> None:
        super()._use(key)
        self._counts[key] = self._counts.get(key, 0) + 1

    def _priority(self, key: bytes) -> Priority:
        return (self._counts[key], self._last[key])


class LACRPolicy(LFUPolicy):
    """Locality-aware cache replacement (DepCache section 4.2.2, Eq. 6).

    The priority of a state is alpha * its uses since it was added + (1 - alpha) * the sum over the
    next requests that read it of (window - position) / window. Counts are raw, as printed,
    and never age.

    Args:
        alpha: weight of the past, from 0 to 1.
        window: most requests that count, the running one included.

    Raises:
        ConfigError: if ``alpha`` is outside [0, 1] or ``window`` below 0.
    """

    def __init__(self, alpha: float = 0.2, window: int = 16) -> None:
        if not 0 <= alpha <= 1:
            raise ConfigError("bad weight of the past", where="alpha", found=alpha, valid="0 to 1")
        super().__init__()
        self._alpha = alpha
        self._window = RequestWindow(window)

    def began(self, requests: Sequence[Collection[bytes]]) -> None:
        """Learn that a request begins, and which keys it and those behind it read."""
        for key in self._window.replace(requests):
            self._lowered(key)

    def _priority(self, key: bytes) -> Priority:
        count, last = super()._priority(key)
        window, first = self._window.size, self._window.first
        future = sum((window - (number - first)) / window for number in self._window.uses(key))
        return (self._alpha * count + (1 - self._alpha) * future, last)

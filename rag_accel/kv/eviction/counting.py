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

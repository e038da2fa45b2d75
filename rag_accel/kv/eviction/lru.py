"""The policy that goes by recency."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rag_accel.kv.eviction.priorities import Priority, PriorityPolicy


class LRUPolicy(PriorityPolicy):
    """The least recently used state first; a state that was never used counts from its addition."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[bytes, int] = {}
        self._num_uses = 0

    def added(self, key: bytes, nbytes: int, parent: bytes | None = None) -> None:
        self._use(key)
        super().added(key, nbytes, parent)

    def used(self, key: bytes) -> None:
        super().used(key)
        self._use(key)

    def removed(self, key: bytes) -> None:
        del self._last[key]
        super().removed(key)

    def began(self, requests: Sequence[Collection[bytes]]) -> None:
        """Learn that a request begins: no news to a policy that goes by the past alone."""

    def _use(self, key: bytes) -> None:
        self._last[key] = self._num_uses
        self._num_uses += 1

    def _priority(self, key: bytes) -> Priority:
        return (self._last[key],)

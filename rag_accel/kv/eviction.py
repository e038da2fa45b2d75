"""Policies of a store in memory: the order of eviction, and the admission of new states."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol


class EvictionPolicy(Protocol):
    """An order in which states are evicted. Called by one thread.

    An implementation passes ``EvictionPolicyContract``.
    """

    def added(self, key: bytes, nbytes: int) -> None:
        """Learn that a state of so many bytes is kept from now on."""
        ...

    def used(self, key: bytes) -> None:
        """Learn that a kept state was used."""
        ...

    def removed(self, key: bytes) -> None:
        """Learn that a state is no longer kept."""
        ...

    def victim(self) -> bytes:
        """Return the key of the state to evict next; there is at least one."""
        ...


class LRUPolicy:
    """The least recently used state first; a state that was never used counts from its addition."""

    def __init__(self) -> None:
        self._order: OrderedDict[bytes, None] = OrderedDict()

    def added(self, key: bytes, nbytes: int) -> None:
        """Learn that a state of so many bytes is kept from now on."""
        self._order[key] = None

    def used(self, key: bytes) -> None:
        """Learn that a kept state was used."""
        self._order.move_to_end(key)

    def removed(self, key: bytes) -> None:
        """Learn that a state is no longer kept."""
        del self._order[key]

    def victim(self) -> bytes:
        """Return the key of the state to evict next."""
        return next(iter(self._order))


class SecondHitAdmission:
    """Admission on the second request, so that one-off chunks never evict hot ones.

    Args:
        most: keys that are remembered, the latest.
    """

    def __init__(self, most: int = 1 << 16) -> None:
        self._most = most
        self._seen: OrderedDict[bytes, int] = OrderedDict()

    def count(self, key: bytes) -> None:
        """Count a request for a key."""
        self._seen[key] = self._seen.pop(key, 0) + 1
        if len(self._seen) > self._most:
            self._seen.popitem(last=False)

    def is_known(self, key: bytes) -> bool:
        """Tell whether a key was requested at least twice."""
        return self._seen.get(key, 0) > 1

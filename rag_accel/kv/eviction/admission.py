"""The admission of new states to a store in memory."""

from __future__ import annotations

from collections import OrderedDict


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

"""The next requests, and when each key will be read."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from rag_accel.errors import ConfigError


class RequestWindow:
    """The next requests, numbered in the order in which they are to run.

    A request keeps its number while requests before it leave and others join behind, so that a
    shift of the window changes only the keys of those that left and joined.

    Args:
        size: most requests, the running one included; those behind them are not looked at.

    Raises:
        ConfigError: if ``size`` is below 1.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ConfigError(
                "bad look-ahead", where="window", found=size - 1, valid="0 or more waiting requests"
            )
        self.size = size
        self._requests: deque[tuple[bytes, ...]] = deque()
        self._first = 0
        self._uses: dict[bytes, deque[int]] = {}

    @property
    def first(self) -> int:
        """Return the number of the request that runs next."""
        return self._first

    def uses(self, key: bytes) -> Sequence[int]:
        """Return the numbers of the requests that will read a key, ascending."""
        return self._uses.get(key, ())

    def replace(self, requests: Sequence[Collection[bytes]]) -> set[bytes]:
        """Take over the requests, in order.

        Return the keys that a request which is gone, or which moved back, would have read.
        """
        told = [tuple(keys) for keys in requests[: self.size]]
        gone: set[bytes] = set()
        while not self._is_prefix_of(told):
            gone.update(self._leave())
        for keys in told[len(self._requests) :]:
            self._join(keys)
        return gone

    def _is_prefix_of(self, told: Sequence[tuple[bytes, ...]]) -> bool:
        known = self._requests
        return len(known) <= len(told) and all(
            mine == theirs for mine, theirs in zip(known, told, strict=False)
        )

    def _leave(self) -> tuple[bytes, ...]:
        keys = self._requests.popleft()
        for key in dict.fromkeys(keys):
            uses = self._uses[key]
            uses.popleft()
            if not uses:
                del self._uses[key]
        self._first += 1
        return keys

    def _join(self, keys: tuple[bytes, ...]) -> None:
        number = self._first + len(self._requests)
        self._requests.append(keys)
        for key in dict.fromkeys(keys):
            self._uses.setdefault(key, deque()).append(number)

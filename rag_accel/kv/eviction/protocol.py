"""The interface of eviction policies."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol


class EvictionPolicy(Protocol):
    """An order in which states are evicted. Called by one thread at a time.

    An implementation passes ``EvictionPolicyContract``.
    """

    def added(self, key: bytes, nbytes: int, parent: bytes | None = None) -> None:
        """Learn that a state of so many bytes is kept from now on.

        Args:
            key: of a state that is not kept so far.
            nbytes: size of the state.
            parent: the kept state behind which it was encoded; it is no victim before this one.
        """
        ...

    def used(self, key: bytes) -> None:
        """Learn that a kept state was used; whoever uses a state uses those above it too."""
        ...

    def removed(self, key: bytes) -> None:
        """Learn that a state is no longer kept; its kept children, if any, are roots then."""
        ...

    def began(self, requests: Sequence[Collection[bytes]]) -> None:
        """Learn that a request begins, and which keys it and those behind it read.

        Called before the request's states are used and added. A store that knows no requests may
        leave it out: every policy then goes by what was used.

        Args:
            requests: the keys of each request, the one that begins first, then others that run,
                then those that wait in the order of the queue; in place of what was told before.
                Requests told before are recognised by equal keys, fastest if they are the same
                tuples.
        """
        ...

    def victim(self) -> bytes:
        """Return the key of the state to evict next, a leaf; there is at least one."""
        ...

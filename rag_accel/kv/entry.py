"""The attention state of one text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

#: The state of a store's purges: equal only if nothing was purged in between.
Purges = tuple[int, ...]


class LaneState(Protocol):
    """Keys and values of neighbouring slots, as a pool of lanes gives and takes them."""

    @property
    def nbytes(self) -> int:
        """Return the bytes it holds."""
        ...

    @property
    def seen(self) -> frozenset[str]:
        """Return digests of the other texts that it was encoded behind, as its store makes them."""
        ...

    def having_seen(self, digests: frozenset[str]) -> LaneState:
        """Return the same state, which says that it was encoded behind these texts."""
        ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class KeyValues:
    """Keys and values ``[layer, kv head, token, dim]``; never changed in place.

    Args:
        keys: rotated for the positions they were computed at.
        values: of the same tokens.
        position: that of the first token.
        seen: digests of the other texts that it was encoded behind, as its store makes them.
    """

    keys: Any
    values: Any
    position: int
    seen: frozenset[str] = frozenset()

    @property
    def nbytes(self) -> int:
        """Return the bytes of both tensors."""
        return self.keys.nbytes + self.values.nbytes

    def having_seen(self, digests: frozenset[str]) -> KeyValues:
        return replace(self, seen=digests)

    def __len__(self) -> int:
        return self.keys.shape[2]


@dataclass(frozen=True, slots=True)
class ChunkLabel:
    """The tenant and the texts of a state, by which it can be purged.

    Args:
        namespace: tenant.
        text: the encoded text.
        seen: digests of the texts it was encoded behind, as ``ChunkStore.digests`` makes them.
        purges: the store's purges when the encoding began; a state is not kept if any came later.
            None keeps it in any case.
    """

    namespace: str = ""
    text: str = ""
    seen: frozenset[str] = frozenset()
    purges: Purges | None = None

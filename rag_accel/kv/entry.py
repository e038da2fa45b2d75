"""The attention state of one text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

#: What a store has purged so far: equal only if nothing was purged in between.
Purges = tuple[int, ...]


class LaneState(Protocol):
    """Keys and values of neighbouring slots, as a pool of lanes gives and takes them."""

    @property
    def nbytes(self) -> int:
        """Return the bytes it holds."""
        ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class KeyValues:
    """Keys and values ``[layer, kv head, token, dim]``; what holds them never changes them.

    Args:
        keys: rotated for the positions they were computed at.
        values: of the same tokens.
        position: that of the first token.
        preprocessed: whether the text was encoded behind others that are similar to it.
    """

    keys: Any
    values: Any
    position: int
    preprocessed: bool = False

    @property
    def nbytes(self) -> int:
        """Return the bytes of both tensors."""
        return self.keys.nbytes + self.values.nbytes

    def __len__(self) -> int:
        return self.keys.shape[2]


@dataclass(frozen=True, slots=True)
class ChunkLabel:
    """Whose a state is and of what, for those who want it gone.

    Args:
        namespace: tenant.
        text: what was encoded.
        neighbours: the texts it was encoded behind, which its state has seen.
        purges: what the store had purged when the encoding began; a state is not kept if any came
            later. None for a state that is kept whatever was purged.
    """

    namespace: str = ""
    text: str = ""
    neighbours: tuple[str, ...] = ()
    purges: Purges | None = None

"""Under what the attention state of a text is kept: everything that it depends on, hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ChunkSource:
    """What the state of all texts depends on that are encoded alike.

    Args:
        model: identifies the weights, their dtype and how the state is computed.
        namespace: tenant; no other one's texts are found under its keys.
        head: the tokens in front of each text.
        recipe: how the texts were encoded.
    """

    model: str
    namespace: str
    head: tuple[int, ...]
    recipe: str = "behind-head-1"

    def behind(self, neighbours: Iterable[Iterable[int]]) -> ChunkSource:
        """Return the source of texts that are encoded behind these texts, too, in this order.

        Args:
            neighbours: the tokens of each, directly before the text those of the last.
        """
        digest = hashlib.sha256(b"".join(map(self.key, neighbours))).hexdigest()
        return replace(self, recipe=f"behind-neighbours-1 {digest}")

    def key(self, ids: Iterable[int]) -> bytes:
        """Return the key of a text's tokens: 32 bytes."""
        digest = hashlib.sha256()
        for part in (self.model, self.namespace, self.recipe):
            encoded = part.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
        for tokens in (self.head, tuple(ids)):
            digest.update(len(tokens).to_bytes(8, "little"))
            digest.update(b"".join(token.to_bytes(8, "little", signed=True) for token in tokens))
        return digest.digest()

"""Under what the attention state of a text is kept: everything that it depends on, hashed."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hashlib import _Hash

#: Whether texts are encoded behind others, too, or behind the head alone.
KvRecipe = Literal["alone", "neighbours"]


@dataclass(frozen=True)
class ChunkSource:
    """Everything but its own tokens that the KV cache of a text depends on.

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

    def behind_others(self) -> ChunkSource:
        """Return the source of texts encoded behind whichever others were retrieved with them.

        The state says which.
        """
        return replace(self, recipe="behind-others-1")

    def key(self, ids: Iterable[int]) -> bytes:
        """Return the key of a text's tokens: 32 bytes."""
        digest = self._before_ids.copy()
        _add_tokens(digest, ids)
        return digest.digest()

    def __getstate__(self) -> dict[str, object]:
        # A digest can be neither copied by ``copy`` nor pickled; it is hashed again.
        return {name: value for name, value in vars(self).items() if name != "_before_ids"}

    @cached_property
    def _before_ids(self) -> _Hash:
        """The digest of all but a text's tokens, hashed once for all texts behind a head."""
        digest = hashlib.sha256()
        for part in (self.model, self.namespace, self.recipe):
            encoded = part.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
        _add_tokens(digest, self.head)
        return digest


def _add_tokens(digest: _Hash, ids: Iterable[int]) -> None:
    """Hash the number of tokens and each of them, as eight bytes, the lowest first."""
    tokens = array("q", ids)
    digest.update(len(tokens).to_bytes(8, "little"))
    if sys.byteorder == "big":
        tokens.byteswap()
    digest.update(tokens)

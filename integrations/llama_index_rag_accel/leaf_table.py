"""The methods in which LlamaIndex objects do their work.

Beside them stand those that block a loop meanwhile, or make calls that do not need each other.

Embeddings and retrievers are intercepted below their own events, caches and rate limiters; models
around them, since there is no method between a model's events and its work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.embeddings.base_sparse import BaseSparseEmbedding
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.embeddings.multi_modal_base import MultiModalEmbedding
from llama_index.core.graph_stores.types import PropertyGraphStore
from llama_index.core.multi_modal_llms.base import MultiModalLLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.schema import TransformComponent
from llama_index.core.vector_stores.types import BasePydanticVectorStore

from llama_index_rag_accel.concurrency.blocking_methods import blocking_method
from llama_index_rag_accel.concurrency.composites import composite_of
from llama_index_rag_accel.concurrency.layers import Method
from llama_index_rag_accel.concurrency.offload import (
    leaving_within,
    may_leave,
    off_loop,
    stays_on_loop,
)
from llama_index_rag_accel.concurrency.parallel_calls import spread
from llama_index_rag_accel.indexed_graph import indexed, is_indexed
from llama_index_rag_accel.owned_search import is_recognised, may_be_owned, searching
from llama_index_rag_accel.recognised import RECOGNISED
from rag_accel.accelerator import RequestIdentity
from rag_accel.adoption.embedding_calls import Role
from rag_accel.adoption.owned_embedding import EmbeddingMethod, EmbeddingRecogniser
from rag_accel.adoption.prefetching_methods import EmbeddingsAhead
from rag_accel.adoption.proxy_calls import StandingIn
from rag_accel.engine_api import PrimitiveKind
from rag_accel.interception.leaf_table import (
    Framework,
    LeafMethod,
    leaf_class,
    leaf_methods,
    plain_class,
    plain_method,
)
from rag_accel.system.classes import does_the_same
from rag_accel_adapters.llama_index.documents import documents_in, question_in
from rag_accel_adapters.llama_index.models import EMBEDDINGS
from rag_accel_adapters.llama_index.proxies import PROXIES
from rag_accel_adapters.llama_index.walk import walk

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
    EMBEDDINGS,
)
PROXIED = StandingIn(PROXIES)


def _pair(name: str, async_name: str, kind: PrimitiveKind) -> list[LeafMethod]:
    # The default of an async method calls the other on the loop. It stays there: the class may be
    # the user's, and what it does in its own thread is its business.
    return [LeafMethod(name, kind), LeafMethod(async_name, kind, "coroutine")]


_MODEL = [
    replace(leaf, owned=PROXIED.owned)
    for leaf in (
        *_pair("complete", "acomplete", DECODING),
        *_pair("chat", "achat", DECODING),
        LeafMethod("stream_complete", DECODING, "stream"),
        LeafMethod("astream_complete", DECODING, "async_stream"),
        LeafMethod("stream_chat", DECODING, "stream"),
        LeafMethod("astream_chat", DECODING, "async_stream"),
    )
]


_EMBEDS = [
    *_pair("_get_query_embedding", "_aget_query_embedding", EMBEDDING),
    *_pair("_get_text_embedding", "_aget_text_embedding", EMBEDDING),
    *_pair("_get_text_embeddings", "_aget_text_embeddings", EMBEDDING),
]
_EMBEDS_TEXT = [replace(leaf, owned=_RECOGNISER.owned) for leaf in _EMBEDS]
_BATCHES = ("get_text_embedding_batch", "aget_text_embedding_batch")
_BATCH_METHODS = (
    *_BATCHES,
    "_get_text_embeddings_cached",
    "_aget_text_embeddings_cached",
    "_aget_text_embeddings_rate_limited",
)


def _chunk_len(obj: Any, cls: type) -> int | None:
    """Return the texts of a chunk, unless a cache or a limiter has a say in what is computed."""
    if obj.embeddings_cache is not None or obj.rate_limiter is not None:
        return None
    is_known = does_the_same(cls, BaseEmbedding, _BATCH_METHODS, plain_method)
    return obj.embed_batch_size if is_known else None


_AHEAD = EmbeddingsAhead(_RECOGNISER, "texts", _chunk_len)
_BATCH = [
    replace(leaf, owned=_AHEAD.owned, within=lambda cls: True)
    for leaf in _pair(*_BATCHES, EMBEDDING)
]


_AGGREGATES = [
    LeafMethod("get_agg_embedding_from_queries", EMBEDDING, "composite"),
    LeafMethod("aget_agg_embedding_from_queries", EMBEDDING, "composite"),
]


def _is_composite_call(method: Method | None) -> bool:
    return blocking_method(method) is not None or composite_of(method) is not None


def _reads(part: Any) -> frozenset[str]:
    """Return the options that a part of a program reads; some are read by methods of a class."""
    cls = plain_class(type(part))
    methods = [plain_method(cls, leaf.name) for leaf in leaf_methods(cls)]
    looks = {"offload_blocking": blocking_method, "parallel_calls": composite_of}
    found = (name for name, look in looks.items() if any(map(look, methods)))
    return RECOGNISED.reads(part) | frozenset(found)


def _held_by(obj: Any) -> Iterator[Any]:
    """Yield what an object holds: each may lead to a leaf, and its calls are the program's, too."""
    yield from vars(obj).values()


def _around(*names: str) -> list[LeafMethod]:
    """Return async methods of stores that are not scheduled, but may leave their loop free."""
    return [LeafMethod(name, PrimitiveKind.INGESTION, "composite") for name in names]


def _stays_unless(is_searched: Callable[[Any], bool]) -> Callable[[Any, RequestIdentity], bool]:
    """Return what tells whether a store only does its own work, as part of a retriever's call.

    Such a call is joined with no other, is not searched by us and leaves no loop free.
    """

    def stays(store: Any, identity: RequestIdentity) -> bool:
        return not is_searched(store) and stays_on_loop(store, identity)

    return stays


def _vector_search(leaf: LeafMethod) -> LeafMethod:
    """Return the row of a vector store's search, which a retriever's call may be made of."""
    may_leave_its_loop = partial(may_leave, leaf)

    def owned(original: Method, leaf: LeafMethod, borrowed: Method) -> Method:
        return PROXIED.owned(off_loop(original), leaf, searching(original, leaf, borrowed))

    return replace(
        leaf,
        owned=owned,
        within=lambda cls: (
            is_recognised(cls) or PROXIED.may_be_proxied(cls) or may_leave_its_loop(cls)
        ),
        is_plain_within=_stays_unless(
            lambda store: may_be_owned(store) or PROXIED.may_be_proxied(type(store))
        ),
    )


def _graph_search(leaf: LeafMethod) -> LeafMethod:
    """Return the row of a graph store's search, which a retriever's call may be made of."""
    may_leave_its_loop = partial(may_leave, leaf)
    # What it gives are parts of a graph. A retriever makes documents of them, and is noted itself.
    leaf = replace(
        leaf,
        finds_documents=False,
        is_plain_within=_stays_unless(lambda store: is_indexed(type(store))),
    )
    if leaf.name.removeprefix("a") not in _INDEXED_SEARCHES:
        return replace(leaf, owned=leaving_within, within=may_leave_its_loop)
    return replace(
        leaf,
        owned=partial(indexed, spread=spread),
        within=lambda cls: is_indexed(cls) or may_leave_its_loop(cls),
    )


_INDEXED_SEARCHES = ("get_triplets", "get_rel_map")
_GRAPH_SEARCHES = ("get", "structured_query", "vector_query")

LLAMA_INDEX = Framework(
    "LlamaIndex",
    leaves={
        BaseLLM: _MODEL,
        MultiModalLLM: _MODEL,
        MultiModalEmbedding: [
            *_EMBEDS_TEXT,
            *_BATCH,
            *_AGGREGATES,
            *_pair("_get_image_embedding", "_aget_image_embedding", EMBEDDING),
            *_pair("_get_image_embeddings", "_aget_image_embeddings", EMBEDDING),
        ],
        BaseEmbedding: [*_EMBEDS_TEXT, *_BATCH, *_AGGREGATES],
        BaseSparseEmbedding: _EMBEDS,
        BaseRetriever: [
            *_pair("_retrieve", "_aretrieve", SEARCHING),
            LeafMethod("_run_sync_queries", SEARCHING, "composite"),
        ],
        # Where a store looks at its vectors, also for a retriever over it.
        BasePydanticVectorStore: [
            *(_vector_search(leaf) for leaf in _pair("query", "aquery", SEARCHING)),
            *_pair("add", "async_add", PrimitiveKind.INGESTION),
            *_around("adelete", "adelete_nodes", "aget_nodes", "aclear"),
        ],
        PropertyGraphStore: [
            *(
                _graph_search(leaf)
                for name in (*_INDEXED_SEARCHES, *_GRAPH_SEARCHES)
                for leaf in _pair(name, f"a{name}", SEARCHING)
            ),
            *_around("aupsert_nodes", "aupsert_relations", "adelete", "adelete_llama_nodes"),
            *_around("aget_schema"),
        ],
        # Each is known in a few classes of LlamaIndex's; a method of that name elsewhere is not
        # touched.
        BaseQueryEngine: [
            LeafMethod("_query", SEARCHING, "composite"),
            LeafMethod("_aquery", SEARCHING, "composite"),
            LeafMethod("asynthesize", SEARCHING, "composite"),
        ],
        BaseSynthesizer: [
            LeafMethod("get_response", DECODING, "composite"),
            LeafMethod("get_response_from_messages", DECODING, "composite"),
        ],
        BaseNodePostprocessor: [
            replace(leaf, owned=PROXIED.owned)
            for leaf in _pair("_postprocess_nodes", "_apostprocess_nodes", RERANKING)
        ],
        # Extractors of a property graph; an embedding is a component of this kind, too.
        TransformComponent: [LeafMethod("acall", DECODING, "composite")],
    },
    # A retriever over others has them do the work.
    parts={BaseRetriever: (BaseRetriever,)},
    # A retriever over a store, or a model over another.
    inner={SEARCHING: (BasePydanticVectorStore, PropertyGraphStore), DECODING: (BaseLLM,)},
    held_by=_held_by,
    walk=lambda program: ((found.path, found.obj) for found in walk(program)),
    reads=_reads,
    is_composite_call=_is_composite_call,
    spread=spread,
    why_not=RECOGNISED.why_not,
    may_be_owned=partial(EMBEDDINGS.may_adopt, method=plain_method),
    documents=documents_in,
    question=question_in,
)


def does_work(cls: type) -> bool:
    """Tell whether objects of a class do work of LlamaIndex's rather than having others do it."""
    known = leaf_class(cls)
    return known.framework is LLAMA_INDEX and any(
        leaf.flavour != "composite" for leaf in leaf_methods(cls)
    )

"""LlamaIndex as a framework: the methods in which its objects do their work, and explanations.

Among them are methods that block a loop meanwhile, or make calls that do not need each other.

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
from llama_index.core.indices.base import BaseIndex
from llama_index.core.indices.property_graph.sub_retrievers.base import BasePGRetriever
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
    reason_to_stay,
    spread,
    stays_on_loop,
)
from llama_index_rag_accel.entries import is_program
from llama_index_rag_accel.indexed_graph import indexed, is_indexed, why_not_indexed, why_not_shared
from llama_index_rag_accel.owned_search import (
    is_recognised,
    may_be_owned,
    searching,
    why_not_searched,
)
from rag_accel.accelerator import Accelerator, RequestIdentity
from rag_accel.adoption.embedding_calls import Role
from rag_accel.adoption.owned_embedding import EmbeddingMethod, EmbeddingRecogniser, EmbeddingsAhead
from rag_accel.adoption.proxy_calls import StandingIn
from rag_accel.adoption.recognised_parts import RecognisedParts
from rag_accel.engine_api import PrimitiveKind
from rag_accel.interception.explanation import (
    AROUND_LEAVES,
    BORROWED,
    GRAPH_RETRIEVAL,
    ExplainedPart,
    Explanation,
    recognised_store,
)
from rag_accel.interception.leaf_table import (
    Framework,
    LeafMethod,
    is_composite,
    leaf_class,
    leaf_methods,
)
from rag_accel.system.classes import does_the_same
from rag_accel.system.methods import plain_class, plain_method
from rag_accel_adapters.llama_index.documents import documents_in, question_in
from rag_accel_adapters.llama_index.models import EMBEDDINGS
from rag_accel_adapters.llama_index.plan import graph_of
from rag_accel_adapters.llama_index.proxies import PROXIES
from rag_accel_adapters.llama_index.walk import FoundPart, walk


def _why_not_searched(leaf: Any) -> str | None:
    if isinstance(leaf, BasePGRetriever):
        reason = why_not_shared(leaf)
        return "" if reason is None else f"no graph retrieval: {reason}"
    found = why_not_searched(leaf)
    return why_not_indexed(leaf) if found is None else found


RECOGNISED = RecognisedParts(
    BaseEmbedding,
    EMBEDDINGS,
    PROXIES,
    _why_not_searched,
    {
        BaseEmbedding: "RagAccelEmbedding embeds with a local model",
        BasePydanticVectorStore: "RagAccelVectorStore searches on an engine",
        BaseLLM: "RagAccelLLM runs a local model, or calls the servers of a RemoteLLM",
    },
)


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
    is_known = does_the_same(cls, BaseEmbedding, _BATCH_METHODS)
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
    may_be_owned=EMBEDDINGS.may_adopt,
    documents=documents_in,
    question=question_in,
)


def does_work(cls: type) -> bool:
    """Tell whether objects of a class do work of LlamaIndex's rather than having others do it."""
    known = leaf_class(cls)
    return known.framework is LLAMA_INDEX and any(
        leaf.flavour != "composite" for leaf in leaf_methods(cls)
    )


_PROGRAM = f"{AROUND_LEAVES}, each call or run of it is one request"
_PART = f"{AROUND_LEAVES}, as part of a request"


def _parts(program: Any, accelerator: Accelerator) -> Iterator[ExplainedPart]:
    for found in walk(program):
        lines = tuple(_lines(found, accelerator))
        yield ExplainedPart(found.path, lines, _is_leaf(found.obj))


def _is_leaf(obj: Any) -> bool:
    """Tell whether an object does work itself rather than having others do it."""
    return does_work(type(obj)) and not is_composite(obj)


def _lines(found: FoundPart, accelerator: Accelerator) -> Iterator[str]:
    obj = found.obj
    name = type(obj).__name__
    if _is_leaf(obj):
        yield f"{name}: {_how(found, accelerator)}"
    elif is_program(obj):
        yield f"{name}: {_PART if found.around else _PROGRAM}"
    elif isinstance(obj, BaseIndex):
        yield f"{name}: what it makes is accelerated, each insertion is a request"
    yield from (f"{name}.{said}" for said in _on_loop(obj, accelerator))


def _how(found: FoundPart, accelerator: Accelerator) -> str:
    described = RECOGNISED.describe(found.obj, accelerator, _searched)
    if described is not None:
        return described
    if _is_inner(found):
        return "part of the leaf that holds it: runs within its call"
    return RECOGNISED.borrowed(found.obj, accelerator)


def _searched(leaf: Any) -> str | None:
    if isinstance(leaf, BasePGRetriever):
        reason = why_not_shared(leaf)
        return GRAPH_RETRIEVAL if reason is None else f"{BORROWED} (no graph retrieval: {reason})"
    return recognised_store(why_not_searched(leaf)) if is_recognised(type(leaf)) else None


def _is_inner(found: FoundPart) -> bool:
    """Tell whether a leaf that holds an object counts its calls as its own."""
    holders = (holder for holder in found.around if _is_leaf(holder))
    kinds = {leaf.kind for holder in holders for leaf in leaf_methods(type(holder))}
    inner = tuple(base for kind in kinds for base in LLAMA_INDEX.inner.get(kind, ()))
    return isinstance(found.obj, inner)


def _on_loop(obj: Any, accelerator: Accelerator) -> Iterator[str]:
    """Yield where the async methods run that upstream lets block their loop, together."""
    cls = type(obj)
    methods = leaf_methods(cls) if leaf_class(cls).framework is LLAMA_INDEX else ()
    options = accelerator.options
    known_proxy = PROXIES.fitting(obj)
    has_proxy = known_proxy is not None and known_proxy.describe(options) is not None
    by_place: dict[str, list[str]] = {}
    for leaf in methods:
        known = blocking_method(plain_method(plain_class(cls), leaf.name))
        if known is None:
            continue
        reason = reason_to_stay(
            known, obj, accelerator, is_search=has_proxy and leaf.kind is PrimitiveKind.SEARCHING
        )
        where = "leaves its loop free" if reason is None else f"blocks its loop: {reason}"
        by_place.setdefault(where, []).append(leaf.name)
    for where, (first, *others) in by_place.items():
        yield f"{first} {where}" + (f"; the same for {', '.join(others)}" if others else "")


EXPLANATION = Explanation(LLAMA_INDEX, _parts, graph_of)

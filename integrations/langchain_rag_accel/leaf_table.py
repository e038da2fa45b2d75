"""LangChain as a framework: the methods in which its objects do their work, and explanations.

Among the methods are those in which composite retrievers make calls that do not need each other.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from langchain_core.callbacks.manager import AsyncRunManager
from langchain_core.documents.compressor import BaseDocumentCompressor
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import LLM, BaseChatModel, BaseLanguageModel, BaseLLM
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable
from langchain_core.vectorstores import VectorStore

from langchain_rag_accel.owned_search import (
    OWNED_COROUTINES,
    UNIT,
    is_plain_within,
    is_recognised,
    searching,
    why_not_searched,
)
from langchain_rag_accel.parallel_calls import (
    how_spread,
    in_parallel,
    is_graph_transformer,
    is_spread,
)
from langchain_rag_accel.plan import make_graph
from rag_accel.accelerator import Accelerator
from rag_accel.adoption.owned_embedding import EmbeddingMethod, EmbeddingRecogniser
from rag_accel.adoption.proxy_calls import StandingIn
from rag_accel.adoption.recognised_parts import RecognisedParts
from rag_accel.engine_api import PrimitiveKind
from rag_accel.interception.explanation import (
    AROUND_LEAVES,
    NOT_UNDERSTOOD,
    ExplainedPart,
    Explanation,
    recognised_store,
)
from rag_accel.interception.fallback import start_in_pool
from rag_accel.interception.identity import find_identity
from rag_accel.interception.leaf_table import (
    Framework,
    LeafMethod,
    Method,
    is_composite,
    leaf_base,
    leaf_pair,
)
from rag_accel_adapters.langchain.composites import (
    ClassicChain,
    blocking_call,
    composite_of,
    runs_in_executor,
)
from rag_accel_adapters.langchain.documents import documents_in, question_in
from rag_accel_adapters.langchain.models import EMBEDDINGS
from rag_accel_adapters.langchain.proxies import PROXIES
from rag_accel_adapters.langchain.walk import (
    Found,
    QueriedGraph,
    is_function,
    is_users,
    leaves,
    walk,
)

RECOGNISED = RecognisedParts(
    Embeddings,
    EMBEDDINGS,
    PROXIES,
    why_not_searched,
    {
        Embeddings: "RagAccelEmbeddings embeds with a local model",
        VectorStore: "RagAccelVectorStore searches on an engine",
        BaseChatModel: "ChatRagAccel runs a local model, or calls the servers of a RemoteLLM",
    },
)


def in_call_threads(method: Method) -> Method:
    """Return a chain's ``_acall`` as it is to run here: in a thread of the run's accelerator."""
    identity = find_identity()
    return method if identity is None else partial(_run, method, identity.accelerator)


async def _run(method: Method, accelerator: Any, chain: Any, *args: Any, **kwargs: Any) -> Any:
    call = blocking_call(chain, *args, **kwargs)
    running = start_in_pool(accelerator, call, type(chain).__qualname__)
    return await (method(chain, *args, **kwargs) if running is None else running)


DECODING, SEARCHING = PrimitiveKind.DECODING, PrimitiveKind.SEARCHING
EMBEDDING, RERANKING = PrimitiveKind.EMBEDDING, PrimitiveKind.RERANKING

_QUERY, _DOCUMENTS = EmbeddingMethod("query", one=True), EmbeddingMethod("document", one=False)
_RECOGNISER = EmbeddingRecogniser(
    {
        "embed_query": _QUERY,
        "aembed_query": _QUERY,
        "embed_documents": _DOCUMENTS,
        "aembed_documents": _DOCUMENTS,
    },
    EMBEDDINGS,
)
PROXIED = StandingIn(PROXIES)


def _model(base: type) -> list[LeafMethod]:
    # LangChain decides whether a model streams by the class that defines these two, so they are
    # never defined where the class did not.
    return [
        *leaf_pair("_generate", DECODING, base, "_agenerate"),
        LeafMethod("_stream", DECODING, "generator", base),
        LeafMethod("_astream", DECODING, "async_generator", base),
    ]


def _stands_in(leaf: LeafMethod) -> LeafMethod:
    return replace(leaf, owned=PROXIED.owned, within=PROXIED.may_be_proxied)


_CHAT = [
    *map(_stands_in, _model(BaseChatModel)),
    # Optional: a model may speak the newer event protocol itself.
    LeafMethod("_stream_chat_model_events", DECODING, "generator"),
    LeafMethod("_astream_chat_model_events", DECODING, "async_generator"),
]


def _owned_store(leaf: LeafMethod) -> LeafMethod:
    """Return a store's method that runs on a copy, on a proxy, or where its caller is."""
    if leaf.name not in OWNED_COROUTINES:
        return replace(leaf, owned=PROXIED.owned, within=PROXIED.may_be_proxied)

    def owned(original: Method, leaf: LeafMethod, borrowed: Method) -> Method:
        return searching(original, leaf, PROXIED.owned(original, leaf, borrowed))

    return replace(
        leaf,
        owned=owned,
        within=lambda cls: is_recognised(cls) or PROXIED.may_be_proxied(cls),
        is_plain_within=lambda store, identity: (
            not PROXIED.may_be_proxied(type(store)) and is_plain_within(store, identity)
        ),
    )


_STORE = [
    _owned_store(leaf)
    for name in (
        "similarity_search",
        "similarity_search_with_score",
        "similarity_search_by_vector",
        "max_marginal_relevance_search",
        "max_marginal_relevance_search_by_vector",
    )
    for leaf in leaf_pair(name, SEARCHING, VectorStore)
]
# Where a store of LangChain's own looks at its vectors, whichever search led there.
_UNIT = LeafMethod(
    UNIT, SEARCHING, owned=searching, within=is_recognised, is_plain_within=is_plain_within
)
# Each is known in one class of LangChain's; a method of the same name elsewhere is not touched.
_SPREAD = [
    LeafMethod(name, SEARCHING, "composite")
    for name in ("rank_fusion", "retrieve_documents", "merge_documents")
]
# Neither of these is done in an executor by default: each is made of the other searches.
_SCORED = [
    LeafMethod("similarity_search_with_relevance_scores", SEARCHING),
    LeafMethod("asimilarity_search_with_relevance_scores", SEARCHING, "coroutine"),
]


def _held_by(obj: Any) -> Iterator[Any]:
    return (found.obj for found in leaves(obj))


def _reads(part: Any) -> frozenset[str]:
    """Return the options that a part of a program reads."""
    return RECOGNISED.reads(part) | ({"parallel_calls"} if is_spread(type(part)) else frozenset())


def _spread(method: Method) -> Method:
    return in_call_threads(method) if runs_in_executor(method) else in_parallel(method)


def _is_composite_call(method: Method | None) -> bool:
    return runs_in_executor(method) or composite_of(method) is not None


def _to_sync(value: Any) -> Any:
    return value.get_sync() if isinstance(value, AsyncRunManager) else value


LANGCHAIN = Framework(
    "LangChain",
    leaves={
        BaseChatModel: _CHAT,
        LLM: [*_model(BaseLLM), LeafMethod("_acall", DECODING, "coroutine", LLM, sync="_call")],
        BaseLLM: list(map(_stands_in, _model(BaseLLM))),
        BaseRetriever: [
            *leaf_pair(
                "_get_relevant_documents", SEARCHING, BaseRetriever, "_aget_relevant_documents"
            ),
            *_SPREAD,
        ],
        VectorStore: [*_STORE, *_SCORED, _UNIT],
        Embeddings: [
            *leaf_pair("embed_query", EMBEDDING, Embeddings, owned=_RECOGNISER.owned),
            *leaf_pair("embed_documents", EMBEDDING, Embeddings, owned=_RECOGNISER.owned),
        ],
        BaseDocumentCompressor: leaf_pair(
            "compress_documents",
            RERANKING,
            BaseDocumentCompressor,
            "acompress_documents",
            owned=PROXIED.owned,
        ),
        # A query may write, and a write is the caller's: each runs once, where its caller is.
        QueriedGraph: [
            LeafMethod("query", SEARCHING, finds_documents=False),
            LeafMethod("get_entity_knowledge", SEARCHING, finds_documents=False),
        ],
        ClassicChain: [LeafMethod("_acall", SEARCHING, "composite")],
    },
    parts={
        BaseRetriever: (BaseRetriever,),
        Embeddings: (Embeddings,),
        BaseDocumentCompressor: (Runnable, Embeddings, BaseDocumentCompressor),
    },
    # A retriever over a store or a graph, or a model over another.
    inner={SEARCHING: (VectorStore, QueriedGraph), DECODING: (BaseLanguageModel,)},
    entries={BaseRetriever: ("invoke", "ainvoke")},
    held_by=_held_by,
    walk=lambda program: ((found.path, found.obj) for found in walk(program)),
    reads=_reads,
    to_sync=_to_sync,
    is_composite_call=_is_composite_call,
    spread=_spread,
    why_not=RECOGNISED.why_not,
    may_be_owned=EMBEDDINGS.may_adopt,
    documents=documents_in,
    question=question_in,
)


def _parts(program: Any, accelerator: Accelerator) -> Iterator[ExplainedPart]:
    """Yield the leaves that are inside a program, and the functions of the user's."""
    if is_graph_transformer(program):
        lines = (f"{type(program).__name__}.{said}" for said in how_spread(program, accelerator))
        yield ExplainedPart("program", tuple(lines), is_leaf=False)
    for found in walk(program):
        is_leaf = found.is_leaf and not is_composite(found.obj)
        yield ExplainedPart(found.path, tuple(_lines(found, accelerator)), is_leaf)


def _lines(found: Found, accelerator: Accelerator) -> Iterator[str]:
    kind = type(found.obj).__name__
    if found.is_leaf:
        yield f"{kind}: {_how(found.obj, accelerator)}"
        yield from (f"{kind}.{said}" for said in how_spread(found.obj, accelerator))
    elif is_function(found.obj) and is_users(found.obj):
        function = found.obj.func if isinstance(found.obj, functools.partial) else found.obj
        name = getattr(function, "__qualname__", repr(function))
        yield f"{kind}: {name}, your own code: opaque, runs as it is on your thread or loop"


def _how(leaf: Any, accelerator: Accelerator) -> str:
    described = RECOGNISED.describe(leaf, accelerator, _searched)
    if described is not None:
        return described
    if leaf_base(type(leaf)) is None:
        return NOT_UNDERSTOOD
    if is_composite(leaf):
        return AROUND_LEAVES
    return RECOGNISED.borrowed(leaf, accelerator)


def _searched(leaf: Any) -> str | None:
    is_ours = isinstance(leaf, VectorStore) and is_recognised(type(leaf))
    return recognised_store(why_not_searched(leaf)) if is_ours else None


EXPLANATION = Explanation(LANGCHAIN, _parts, make_graph)

"""The classes of LangChain's whose objects can have proxies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from rag_accel.adoption.clients import CrossEncoderClient, faiss_store_row, scorer_obstacle
from rag_accel.adoption.generation import Report
from rag_accel.adoption.proxies import (
    LIMITED,
    LIMITED_LLM_UNLESS,
    LOCAL_LLM,
    LOCAL_LLM_UNLESS,
    OWN_METHODS,
    RERANKER,
    RERANKER_UNLESS,
    SERVED_LLM,
    Ask,
    ProxyClass,
    ProxyClasses,
    replaced,
)
from rag_accel.adoption.remote_stores import remote_store_row
from rag_accel.adoption.served_models import Reports, with_reports
from rag_accel.system.classes import full_name
from rag_accel_adapters.libraries.hf_pipelines import (
    SpreadPipeline,
    pipeline_obstacle,
    pipeline_samples,
)
from rag_accel_adapters.libraries.http_rerankers import LANGCHAIN_JINA
from rag_accel_adapters.libraries.openai_limited import LimitedClient, is_limited, limited_resource
from rag_accel_adapters.libraries.openai_served import (
    TellingClient,
    is_openai_resource,
    telling_resource,
)
from rag_accel_adapters.libraries.vector_stores import CHROMA, CHROMA_UNLESS, QDRANT, QDRANT_UNLESS

#: Methods of stores that search by a client, which have no coroutines of their own.
_SEARCHES = (
    "similarity_search",
    "similarity_search_by_vector",
    "similarity_search_with_score",
    "max_marginal_relevance_search",
    "max_marginal_relevance_search_by_vector",
)
_DIVERSE = "max_marginal_relevance_search_with_score_by_vector"


def _off_loop(proxy: Any, ask: Ask) -> Any:
    if not ask.is_on_loop:
        return proxy
    off_loop = {
        f"a{name}": partial(ask.in_pool, getattr(proxy, name))
        for name in ("similarity_search_with_score_by_vector", _DIVERSE)
    }
    # Another one, so that none holds itself: only the garbage collector would end it.
    return replaced(proxy, **off_loop)


_CROSS_ENCODER = "langchain_community.cross_encoders.huggingface.HuggingFaceCrossEncoder"


def _reranker_obstacle(reranker: Any) -> str | None:
    model = reranker.model
    if full_name(type(model)) != _CROSS_ENCODER:
        return f"its model is a {full_name(type(model))}; a {_CROSS_ENCODER} runs"
    # With more scores than one for a pair, the class has a say of its own in which counts.
    return scorer_obstacle(model.client)


def _cross_encoder_reranker(reranker: Any, ask: Ask) -> Any:
    model = reranker.model
    return replaced(reranker, model=replaced(model, client=CrossEncoderClient(model.client, ask)))


def _llm_obstacle(llm: Any) -> str | None:
    return pipeline_obstacle(llm.pipeline)


def _pipeline_llm(llm: Any, ask: Ask) -> Any:
    pipeline = SpreadPipeline(llm.pipeline, ask.generation, llm.batch_size)
    return replaced(llm, pipeline=pipeline, batch_size=_ALL)


def _tell(pipeline: Any, found: Any) -> Any:
    """Return generations, or a stream of their chunks, that say how texts were computed."""
    if isinstance(found, Iterator):  # infos of chunks are added up: one says it
        return with_reports(pipeline.reports, found, _add)
    generations = list(_generations_in(found))
    if len(generations) == len(pipeline.reports):
        for generation, report in zip(generations, pipeline.reports, strict=True):
            _add(generation, report)
    return found


def _generations_in(found: Any) -> Iterator[Any]:
    """Yield the generations of a result; a chunk is one."""
    for group in getattr(found, "generations", [found]):
        yield from group if isinstance(group, list) else [group]


def _add(generation: Any, report: Report) -> None:
    if report is not None:
        info = generation.generation_info or {}
        generation.generation_info = {**info, **report}


#: more prompts than any call has: those of a call are handed over together
_ALL = sys.maxsize
_PIPELINE = "langchain_huggingface.llms.huggingface_pipeline.HuggingFacePipeline"
_LLM = ProxyClass(
    ("_generate", "_stream"),
    _llm_obstacle,
    _pipeline_llm,
    "local language model",
    LOCAL_LLM,
    LOCAL_LLM_UNLESS,
    lambda llm: llm.pipeline.model,
    lambda llm, found: _tell(llm.pipeline, found),
    samples=lambda llm: pipeline_samples(llm.pipeline),
)


def _chat_obstacle(chat: Any) -> str | None:
    if full_name(type(chat.llm)) != _PIPELINE:
        return f"its model is a {full_name(type(chat.llm))}; a {_PIPELINE} runs"
    return _llm_obstacle(chat.llm)


def _pipeline_chat(chat: Any, ask: Ask) -> Any:
    return replaced(chat, llm=_pipeline_llm(chat.llm, ask))


_CHAT = ProxyClass(
    ("_generate", "_stream"),
    _chat_obstacle,
    _pipeline_chat,
    "local chat model",
    LOCAL_LLM,
    LOCAL_LLM_UNLESS,
    lambda chat: chat.llm.pipeline.model,
    lambda chat, found: _tell(chat.llm.pipeline, found),
    samples=lambda chat: pipeline_samples(chat.llm.pipeline),
)


def _served_obstacle(llm: Any) -> str | None:
    if not is_openai_resource(llm.client):
        return f"its client is a {full_name(type(llm.client))}, and no resource of openai's"
    return _STANDS_IN if "reports" in vars(llm.client) or is_limited(llm.client) else None


#: Why a proxy has no other; never shown, as only objects of programs are explained.
_STANDS_IN = "it stands in for an object already"


def _served(llm: Any, ask: Ask) -> Any:
    limited, hooks = _limited(llm, ask), ask.server()
    if hooks is None:
        return limited
    reports: Reports = []
    client, resources = llm.client._client, {}
    for name in ("client", "async_client"):
        resource = getattr(limited, name)
        if is_openai_resource(resource):
            resources[name] = telling_resource(resource, lambda: client, hooks, reports)
            if (root := getattr(limited, f"root_{name}", None)) is not None:  # it reads by schemas
                resources[f"root_{name}"] = TellingClient(
                    partial(_itself, root), lambda: client, hooks, reports
                )
    return replaced(limited, **resources)


def _limited(llm: Any, ask: Ask) -> Any:
    """Return a model whose calls wait for their turn at its endpoint, if they are limited."""
    gate, resources = ask.gate(), dict[str, Any]()
    if gate is None:
        return llm
    for name in ("client", "async_client"):
        resource, root = getattr(llm, name), getattr(llm, f"root_{name}", None)
        if is_openai_resource(resource):
            resources[name] = limited_resource(resource, gate)
        if root is not None:
            resources[f"root_{name}"] = LimitedClient(partial(_itself, root), gate)
    return replaced(llm, **resources)


def _itself(client: Any) -> Any:
    return client


def _tell_served(llm: Any, found: Any) -> Any:
    """Return generations, or a stream of their chunks, that say how texts were computed."""
    reports = vars(llm.client).get("reports")
    return found if reports is None else with_reports(reports, found, _add_to_all)


def _add_to_all(found: Any, report: Report) -> None:
    for generation in _generations_in(found):
        _add(generation, report)


_SERVED = ProxyClass(
    ("_generate", "_stream", "_agenerate", "_astream"),
    _served_obstacle,
    _served,
    "model on a server",
    SERVED_LLM,
    LIMITED_LLM_UNLESS,
    tell=_tell_served,
    is_served=True,
)
_LIMITED = ProxyClass(
    ("_generate", "_stream", "_agenerate", "_astream"),
    _served_obstacle,
    _limited,
    "model on a server",
    OWN_METHODS,
    LIMITED_LLM_UNLESS,
    effects=LIMITED,
)
PROXIES = ProxyClasses(
    {
        _PIPELINE: _LLM,
        "langchain_openai.chat_models.base.ChatOpenAI": _SERVED,
        "langchain_openai.chat_models.azure.AzureChatOpenAI": _LIMITED,
        "langchain_openai.chat_models.base.BaseChatOpenAI": _LIMITED,
        "langchain_openai.llms.base.BaseOpenAI": _LIMITED,
        "langchain_community.llms.vllm.VLLMOpenAI": _SERVED,
        "langchain_huggingface.chat_models.huggingface.ChatHuggingFace": _CHAT,
        "langchain_community.vectorstores.faiss.FAISS": faiss_store_row(
            "index",
            (
                "similarity_search",
                "similarity_search_by_vector",
                "similarity_search_with_score",
                "similarity_search_with_score_by_vector",
                "max_marginal_relevance_search",
                "max_marginal_relevance_search_by_vector",
                _DIVERSE,
                f"a{_DIVERSE}",
                "asimilarity_search_with_score_by_vector",
            ),
            _off_loop,
        ),
        "langchain_classic.retrievers.document_compressors.cross_encoder_rerank."
        "CrossEncoderReranker": ProxyClass(
            ("compress_documents",),
            _reranker_obstacle,
            _cross_encoder_reranker,
            "reranker",
            RERANKER,
            ("another model than a `HuggingFaceCrossEncoder`", *RERANKER_UNLESS),
            cross_encoder=lambda reranker: reranker.model.client,
        ),
        "langchain_chroma.vectorstores.Chroma": remote_store_row(
            "_chroma_collection",
            (*_SEARCHES, "similarity_search_by_vector_with_relevance_scores"),
            CHROMA,
            CHROMA_UNLESS,
        ),
        "langchain_qdrant.qdrant.QdrantVectorStore": remote_store_row(
            "_client",
            (*_SEARCHES, "similarity_search_with_score_by_vector", _DIVERSE),
            QDRANT,
            QDRANT_UNLESS,
        ),
        **{known.name: known.row() for known in (LANGCHAIN_JINA,)},
    }
)

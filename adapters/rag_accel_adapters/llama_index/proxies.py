"""The classes of LlamaIndex's whose objects can have proxies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from rag_accel.adoption.clients import (
    CrossEncoderClient,
    FaissIndexClient,
    faiss_store_row,
    scorer_obstacle,
)
from rag_accel.adoption.generation import GeneratingClient, Report
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
from rag_accel.adoption.remote_stores import BatchedClient, remote_store_row
from rag_accel.adoption.served_models import Reports, telling, with_reports
from rag_accel_adapters.libraries.hf_pipelines import generating, samples, shared_call
from rag_accel_adapters.libraries.http_rerankers import LLAMA_INDEX_JINA, LLAMA_INDEX_TEI
from rag_accel_adapters.libraries.openai_limited import LimitedClient
from rag_accel_adapters.libraries.openai_served import TellingClient
from rag_accel_adapters.libraries.vector_stores import CHROMA, CHROMA_UNLESS, QDRANT, QDRANT_UNLESS


def _reranker_obstacle(reranker: Any) -> str | None:
    # With several scores a pair, none of them can be a node's.
    return scorer_obstacle(reranker._model)


def _reranker(reranker: Any, ask: Ask) -> Any:
    return replaced(reranker, _model=CrossEncoderClient(reranker._model, ask))


#: Why a proxy has no other; never shown in explanations, which are of programs.
_STANDS_IN = "it stands in for an object already"


def _llm_obstacle(llm: Any) -> str | None:
    if not isinstance(llm._model, GeneratingClient):
        return None
    return llm._model.why_plain(is_sampled=_samples(llm)) or _STANDS_IN


def _samples(llm: Any) -> bool:
    return samples(llm._model, llm.generate_kwargs)


def _llm(llm: Any, ask: Ask) -> Any:
    return replaced(llm, _model=generating(llm._model, ask.generation, llm._tokenizer))


def _tell(llm: Any, found: Any) -> Any:
    """Return a response, or a stream of responses, whose notes say how texts were computed."""
    return telling(found, partial(_add, llm._model.reports))


def _add(reports: Sequence[Report], response: Any) -> None:
    if reports and reports[0] is not None:  # of a stream, the last one holds the whole text
        kwargs = response.additional_kwargs
        response.additional_kwargs = {**kwargs, **reports[0]}


def _reads_in_threads(tokenizer: Any) -> bool:
    """Tell whether texts are read without a change of a tokenizer's settings."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and backend.truncation is None and backend.padding is None


def shares_steps(obj: Any) -> bool:
    """Tell whether an object is a proxy whose model's calls an engine may run."""
    model = getattr(obj, "_model", None)
    if not isinstance(model, GeneratingClient) or not _reads_in_threads(obj._tokenizer):
        return False
    asked = {
        "max_new_tokens": obj.max_new_tokens,
        "stopping_criteria": obj._stopping_criteria,
        **obj.generate_kwargs,
    }
    return shared_call(model, asked) is not None


def searches_on_engine(obj: Any) -> bool:
    """Tell whether an object is a proxy of a store, whose searches may wait for an engine."""
    if isinstance(getattr(obj, "_faiss_index", None), FaissIndexClient):
        return True
    client = getattr(obj, "_collection", None)
    return isinstance(client, BatchedClient) and client.why_not() is None


def _served_obstacle(llm: Any) -> str | None:
    if not llm.reuse_client:
        return "reuse_client=False makes a client a call; reuse_client=True"
    is_proxy = isinstance(llm.__pydantic_private__["_client"], TellingClient | LimitedClient)
    return _STANDS_IN if is_proxy else None


def _served(llm: Any, ask: Ask) -> Any:
    limited, hooks = _limited(llm, ask), ask.server()
    if hooks is None:
        return limited
    reports: Reports = []
    client = TellingClient(limited._get_client, llm._get_client, hooks, reports)
    other = TellingClient(limited._get_aclient, llm._get_client, hooks, reports)
    return replaced(llm, _client=client, _aclient=other)


def _limited(llm: Any, ask: Ask) -> Any:
    """Return a model whose calls wait for their turn at its endpoint, if they are limited."""
    gate = ask.gate()
    if gate is None:
        return llm
    client, other = LimitedClient(llm._get_client, gate), LimitedClient(llm._get_aclient, gate)
    return replaced(llm, _client=client, _aclient=other)


def _tell_served(llm: Any, found: Any) -> Any:
    """Return a response, or a stream of responses, that says how texts were computed."""
    client = llm._client
    is_telling = isinstance(client, TellingClient)
    return with_reports(client.reports, found, _add_served) if is_telling else found


def _add_served(response: Any, report: Report) -> None:
    if report is not None:
        kwargs = response.additional_kwargs
        told = {**kwargs.get("kv_reuse", {}), **report["kv_reuse"]}
        response.additional_kwargs = {**kwargs, "kv_reuse": told}


_RERANKER = ProxyClass(
    ("_postprocess_nodes", "_apostprocess_nodes"),
    _reranker_obstacle,
    _reranker,
    "reranker",
    RERANKER,
    RERANKER_UNLESS,
    cross_encoder=lambda reranker: reranker._model,
)
_OPENAI_METHODS = (
    *("complete", "stream_complete", "chat", "stream_chat"),
    *("acomplete", "astream_complete", "achat", "astream_chat"),
)
_OPENAI_UNLESS = ("`reuse_client=False`", *LIMITED_LLM_UNLESS)
_HUGGING_FACE_LLM = "llama_index.llms.huggingface.base.HuggingFaceLLM"
PROXIES = ProxyClasses(
    {
        _HUGGING_FACE_LLM: ProxyClass(
            ("complete", "stream_complete", "chat", "stream_chat"),
            _llm_obstacle,
            _llm,
            "local language model",
            LOCAL_LLM,
            LOCAL_LLM_UNLESS,
            lambda llm: llm._model,
            _tell,
            samples=_samples,
        ),
        "llama_index.llms.openai_like.base.OpenAILike": ProxyClass(
            _OPENAI_METHODS,
            _served_obstacle,
            _served,
            "model on a server",
            SERVED_LLM,
            _OPENAI_UNLESS,
            tell=_tell_served,
            is_served=True,
        ),
        "llama_index.llms.openai.base.OpenAI": ProxyClass(
            _OPENAI_METHODS,
            _served_obstacle,
            _limited,
            "model on a server",
            OWN_METHODS,
            _OPENAI_UNLESS,
            effects=LIMITED,
        ),
        "llama_index.vector_stores.faiss.base.FaissVectorStore": faiss_store_row(
            "_faiss_index", ("query", "aquery")
        ),
        "llama_index.vector_stores.chroma.base.ChromaVectorStore": remote_store_row(
            "_collection", ("query", "aquery", "_query"), CHROMA, CHROMA_UNLESS
        ),
        "llama_index.vector_stores.qdrant.base.QdrantVectorStore": remote_store_row(
            "_client", ("query",), QDRANT, QDRANT_UNLESS
        ),
        # Of its own package, and an older one of llama-index-core's.
        "llama_index.postprocessor.sbert_rerank.base.SentenceTransformerRerank": _RERANKER,
        "llama_index.core.postprocessor.sbert_rerank.SentenceTransformerRerank": _RERANKER,
        **{known.name: known.row() for known in (LLAMA_INDEX_JINA, LLAMA_INDEX_TEI)},
    }
)

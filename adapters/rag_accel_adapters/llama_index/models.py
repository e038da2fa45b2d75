"""Models recognised inside LlamaIndex's embeddings objects, so that an owned engine can run them.

An object is adopted only if its class is known, or changes nothing in how it embeds, and its
settings are ones under which the engine computes the same vectors; everything else stays borrowed
and runs where its caller is.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from rag_accel.adoption.embeddings import (
    LOCAL_MODEL,
    LOCAL_UNLESS,
    AdoptedEmbeddings,
    EmbeddingsClass,
    HostedCalls,
    KnownEmbeddings,
    adopt_plain_model,
    server_class,
)
from rag_accel.adoption.known_classes import NotAdoptedError
from rag_accel.adoption.proxies import replaced
from rag_accel.engines.embedding.hosted_engine import ServerAnswer
from rag_accel.engines.http.endpoints import EndpointGate
from rag_accel.system.classes import full_name
from rag_accel_adapters.libraries.as_shipped import WrittenMethods, check_class, check_function
from rag_accel_adapters.libraries.http_embeddings import (
    OLLAMA,
    TEI,
    HttpEmbeddings,
    ollama_queries,
    tei_queries,
)
from rag_accel_adapters.libraries.openai_clients import (
    DIFFERENT_CLIENTS,
    NO_RETRY,
    RETRY,
    ask_unchanged,
    asked_once,
    check_value,
    group_of,
    number_of_http,
    values_of_client,
)
from rag_accel_adapters.libraries.openai_limited import LimitedClient

#: functions of the class's module by which it asks
_ASKING = ("get_embedding", "get_embeddings", "aget_embedding", "aget_embeddings")

#: The methods by which its objects embed.
LEAVES = (
    "_get_query_embedding",
    "_get_text_embedding",
    "_get_text_embeddings",
    "_aget_query_embedding",
    "_aget_text_embedding",
    "_aget_text_embeddings",
)


def hosted_calls(obj: Any, cls: type) -> HostedCalls:
    """Return how to ask for embeddings of OpenAI's or Azure's, of plain class ``cls``.

    Raises:
        NotAdoptedError: a caller might decide a call.
    """
    values = partial(_values, cls)
    group = group_of(values, obj)
    # With settings of its own, so that a later change is not this call's.
    own = replaced(obj, additional_kwargs=copy.deepcopy(obj.additional_kwargs))
    ask = partial(ask_unchanged, values, own, group)
    return HostedCalls(
        group=group,
        max_texts=obj.embed_batch_size,
        ask=partial(ask, partial(_ask, obj._text_engine)),
        ask_queries=partial(ask, partial(_ask, obj._query_engine)),
        alone=partial(_alone, obj),
        attempts=obj._get_client().max_retries + 1,
    )


def _values(cls: type, obj: Any) -> tuple[Any, ...]:
    """Return everything that decides a call.

    Raises:
        NotAdoptedError: a caller might.
    """
    _check_class(cls)
    private = obj.__pydantic_private__
    more = (vars(obj).keys() - cls.model_fields.keys()) | (private.keys() - _PRIVATE)  # type: ignore[attr-defined]
    if more:
        raise NotAdoptedError(f"{min(more)} is set on the object")
    _check_settings(obj)
    client, other = obj._get_client(), private["_aclient"]
    if other is None and (private["_http_client"] or private["_async_http_client"]) is not None:
        other = obj._get_aclient()
    asks = values_of_client(client)
    if other is not None and values_of_client(other) != asks:
        raise NotAdoptedError(*DIFFERENT_CLIENTS)
    engines = (obj._query_engine, obj._text_engine)
    settings = (obj.additional_kwargs, obj.embed_batch_size)
    return number_of_http(client), cls.__qualname__, engines, settings, asks


_PRIVATE = frozenset(
    {
        "_aclient",
        "_async_http_client",
        "_azure_ad_token",
        "_client",
        "_http_client",
        "_query_engine",
        "_text_engine",
    }
)


_CLASSES = frozenset(
    {
        "llama_index.embeddings.azure_openai.base.AzureOpenAIEmbedding",
        "llama_index.embeddings.openai.base.OpenAIEmbedding",
    }
)


def _check_class(cls: type) -> None:
    from llama_index.embeddings.openai import base

    if full_name(cls) not in _CLASSES:
        raise NotAdoptedError(f"{cls.__qualname__} is a class of the program's", "its base class")
    check_class(cls, LEAVES)
    for name in _ASKING:
        check_function(vars(base).get(name), f"{base.__name__}.{name}")


def _check_settings(obj: Any) -> None:
    """Check that its settings are data, and let it ask for several texts and ask again."""
    if not obj.reuse_client:
        raise NotAdoptedError("reuse_client=False makes a client for each call", "reuse_client")
    # Before anything asks it for a client, which would ask for a token.
    if getattr(obj, "use_azure_ad", False):
        raise NotAdoptedError("use_azure_ad may give each caller another token", "a key")
    if type(obj.api_key) is not str:
        raise NotAdoptedError("api_key is no text", "a text")
    if type(obj.embed_batch_size) is not int or obj.embed_batch_size < 2:
        raise NotAdoptedError("embed_batch_size lets no texts share a call", "2 or more")
    if type(obj.max_retries) is not int or obj.max_retries < 1:
        raise NotAdoptedError(NO_RETRY, RETRY)
    kwargs = obj.additional_kwargs
    check_value(kwargs, "additional_kwargs")
    if type(kwargs) is not dict or "encoding_format" in kwargs:
        raise NotAdoptedError("additional_kwargs decide how vectors are sent", "no encoding_format")
    for name in ("_query_engine", "_text_engine"):
        check_value(getattr(obj, name), name)


def _ask(engine: str, own: Any, texts: list[str], gate: EndpointGate | None) -> ServerAnswer:
    """Ask the server once, by LlamaIndex's own function."""
    from llama_index.embeddings.openai import base

    resource = asked_once(own._get_client(), gate)
    client: Any = SimpleNamespace(embeddings=resource)
    vectors = base.get_embeddings(client, texts, engine=engine, **own.additional_kwargs)
    return ServerAnswer(vectors, resource.model)


def limited(obj: Any, gate: EndpointGate) -> Any:
    """Return embeddings of the openai package as they send by a gate."""
    if not obj.reuse_client:  # it makes a client for each call
        return obj
    return replaced(
        obj,
        _client=LimitedClient(obj._get_client, gate),
        _aclient=LimitedClient(obj._get_aclient, gate),
    )


def _alone(obj: Any, attempts: int) -> Any:
    """Return the object for a caller whose shared call has failed: its clients make the rest."""
    client, other = obj._get_client(), obj._get_aclient()
    retries = max(0, client.max_retries - attempts)
    return replaced(
        obj,
        _client=client.with_options(max_retries=retries),
        _aclient=other.with_options(max_retries=retries),
    )


_INNER = ("_embed", "_embed_with_retry")
_WRITTEN = WrittenMethods(LEAVES, _INNER)


def _hugging_face(obj: Any, cls: type) -> AdoptedEmbeddings:
    if obj._parallel_process:
        raise NotAdoptedError(
            "parallel_process has processes of its own embed", "parallel_process=False"
        )
    _WRITTEN.check(obj, cls)
    both = {"normalize_embeddings": obj.normalize}
    queries, texts = {**both, "prompt_name": "query"}, {**both, "prompt_name": "text"}
    adopted = adopt_plain_model(obj._model, queries, texts)
    return replace(adopted, through_sync=True, shows_progress=obj.show_progress_bar)


_OPENAI = server_class(hosted_calls, limited)
#: Settings that decide nothing of what is sent.
_APART = frozenset({"callback_manager", "embeddings_cache", "num_workers", "rate_limiter"})
_HTTP = (
    HttpEmbeddings(
        name="llama_index.embeddings.ollama.base.OllamaEmbedding",
        leaves=LEAVES,
        embed="_get_text_embeddings",
        protocol=OLLAMA,
        apart=_APART,
        ask_queries=ollama_queries,
        max_texts="embed_batch_size",
    ),
    HttpEmbeddings(
        name="llama_index.embeddings.text_embeddings_inference.base.TextEmbeddingsInference",
        leaves=LEAVES,
        embed="_get_text_embeddings",
        protocol=TEI,
        apart=_APART,
        ask_queries=tei_queries,
        max_texts="embed_batch_size",
    ),
)
EMBEDDINGS = KnownEmbeddings(
    {
        "llama_index.embeddings.huggingface.base.HuggingFaceEmbedding": EmbeddingsClass(
            _hugging_face, LOCAL_MODEL, ("parallel_process=True", *LOCAL_UNLESS)
        ),
        "llama_index.embeddings.openai.base.OpenAIEmbedding": _OPENAI,
        "llama_index.embeddings.azure_openai.base.AzureOpenAIEmbedding": _OPENAI,
        **{known.name: known.row() for known in _HTTP},
    },
    (*_INNER, *LEAVES),
)

"""Models recognised inside framework objects, so that an owned engine can run them.

An object is adopted only if its class is known, or changes nothing in how it embeds, and its
settings are ones under which the engine computes the same vectors; everything else stays borrowed
and runs where its caller is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
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
from rag_accel.system.methods import plain_method, undecorated
from rag_accel_adapters.libraries.as_shipped import WrittenMethods, check_class, package_of
from rag_accel_adapters.libraries.http_embeddings import HUB, OLLAMA, HttpEmbeddings
from rag_accel_adapters.libraries.openai_clients import (
    DIFFERENT_CLIENTS,
    ask_unchanged,
    asked_once,
    check_value,
    client_values,
    group_of,
    number_of_http,
)
from rag_accel_adapters.libraries.openai_limited import limited_resource
from rag_accel_adapters.libraries.openai_served import is_openai_resource

#: The methods by which its objects embed.
LEAVES = ("embed_documents", "embed_query", "aembed_documents", "aembed_query")


def hosted_calls(obj: Any, cls: type) -> HostedCalls:
    """Return how to ask for an ``OpenAIEmbeddings`` of plain class ``cls``.

    Raises:
        NotAdoptedError: a caller might decide a call.
    """
    values = partial(_values, cls)
    group = group_of(values, obj)
    # Without the tracers around it, which trace what callers ask for, not shared calls.
    ask = partial(_ask, undecorated(plain_method(cls, "embed_documents")))
    return HostedCalls(
        group=group,
        max_texts=obj.chunk_size,
        ask=partial(ask_unchanged, values, _copied(obj), group, ask),
        alone=partial(_alone, obj),
        attempts=obj.client._client.max_retries + 1,
    )


def _values(cls: type, obj: Any) -> tuple[Any, ...]:
    """Return everything that decides a call.

    Raises:
        NotAdoptedError: a caller might.
    """
    if package_of(cls) != "langchain_openai" or cls.__qualname__ not in _CLASSES:
        raise NotAdoptedError(f"{cls.__qualname__} is a class of the program's", "its base class")
    check_class(cls, LEAVES)
    fields = vars(obj)
    if more := fields.keys() - cls.model_fields.keys():  # type: ignore[attr-defined]
        raise NotAdoptedError(f"{min(more)} is set on the object")
    for name in _PROVIDERS:
        if fields.get(name) is not None:
            raise NotAdoptedError(f"{name} may give each caller another token", "a key")
    if callable(obj.openai_api_key):
        raise NotAdoptedError("api_key is a function, which may look at who calls", "a text")
    if type(obj.chunk_size) is not int or obj.chunk_size < 2:
        raise NotAdoptedError("chunk_size lets no texts share a call", "2 or more")
    settings = [(name, fields[name]) for name in sorted(fields.keys() - _KEPT_ELSEWHERE)]
    for name, value in settings:
        check_value(value, name)
    asks = client_values(obj.client)
    if asks != client_values(obj.async_client):
        raise NotAdoptedError(*DIFFERENT_CLIENTS)
    return number_of_http(obj.client._client), cls.__qualname__, settings, asks


_CLASSES = frozenset({"AzureOpenAIEmbeddings", "OpenAIEmbeddings"})
#: Settings that act for a caller.
_PROVIDERS = ("azure_ad_async_token_provider", "azure_ad_token_provider")
#: Compared as the clients hold it, since that is what they send.
_KEPT_ELSEWHERE = frozenset(
    {
        "async_client",
        "azure_ad_token",
        "client",
        "http_async_client",
        "http_client",
        "openai_api_key",
    }
)


def _copied(obj: Any) -> Any:
    """Return the object with settings of its own, so that a later change is not this call's."""
    copied = obj.model_copy()
    if copied.model_kwargs:
        copied.model_kwargs = copy.deepcopy(copied.model_kwargs)
    return copied


def _ask(
    embed_documents: Callable[..., Sequence[Any]],
    own: Any,
    texts: list[str],
    gate: EndpointGate | None,
) -> ServerAnswer:
    """Ask the server once, by LangChain's own method on a copy of the object."""
    asking = own.model_copy()
    asking.client = asked_once(own.client._client, gate)
    return ServerAnswer(embed_documents(asking, texts), asking.client.model)


def limited(obj: Any, gate: EndpointGate) -> Any:
    """Return embeddings of the openai package as they send by a gate."""
    resources = {name: getattr(obj, name, None) for name in ("client", "async_client")}
    return replaced(
        obj,
        **{
            name: limited_resource(resource, gate)
            for name, resource in resources.items()
            if is_openai_resource(resource)
        },
    )


def _alone(obj: Any, attempts: int) -> Any:
    alone = _copied(obj)
    retries = max(0, obj.client._client.max_retries - attempts)
    alone.client = obj.client._client.with_options(max_retries=retries).embeddings
    alone.async_client = obj.async_client._client.with_options(max_retries=retries).embeddings
    return alone


_INNER = ("_embed",)
_WRITTEN = WrittenMethods(LEAVES, _INNER)


def _hugging_face(obj: Any, cls: type) -> AdoptedEmbeddings:
    if obj.multi_process:
        raise NotAdoptedError("multi_process has processes of its own embed", "multi_process=False")
    _WRITTEN.check(obj, cls)
    queries = obj.query_encode_kwargs or obj.encode_kwargs
    adopted = adopt_plain_model(obj._client, queries, obj.encode_kwargs, _one_line)
    return replace(adopted, shows_progress=obj.show_progress)


def _one_line(text: str) -> str:
    return text.replace("\n", " ")


_OPENAI = server_class(hosted_calls, limited)
_HTTP = (
    HttpEmbeddings(
        name="langchain_huggingface.embeddings.huggingface_endpoint.HuggingFaceEndpointEmbeddings",
        leaves=LEAVES,
        embed="embed_documents",
        protocol=HUB,
    ),
    HttpEmbeddings(
        name="langchain_ollama.embeddings.OllamaEmbeddings",
        leaves=LEAVES,
        embed="embed_documents",
        protocol=OLLAMA,
        apart=frozenset({"async_client_kwargs", "client_kwargs", "sync_client_kwargs"}),
    ),
)
EMBEDDINGS = KnownEmbeddings(
    {
        "langchain_huggingface.embeddings.huggingface.HuggingFaceEmbeddings": EmbeddingsClass(
            _hugging_face, LOCAL_MODEL, ("multi_process=True", *LOCAL_UNLESS)
        ),
        "langchain_openai.embeddings.base.OpenAIEmbeddings": _OPENAI,
        "langchain_openai.embeddings.azure.AzureOpenAIEmbeddings": _OPENAI,
        **{known.name: known.row() for known in _HTTP},
    },
    (*_INNER, *LEAVES),
)

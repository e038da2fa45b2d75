"""Embeddings on a server, recognised where a call is the same whichever caller makes it.

Calls of several callers are joined only then: LangChain's own class with nothing replaced, a key
that is a value, and no hook, transport or provider that could look at who calls; headers and other
settings are compared. What counts is looked at in every call, since a tracer or a gateway may come
at any time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rag_accel.adoption.embeddings import HostedCalls
from rag_accel.adoption.known_classes import NotAdoptedError
from rag_accel.adoption.proxies import replaced
from rag_accel.engines.embedding.hosted_engine import ServerAnswer
from rag_accel.engines.http.endpoints import EndpointGate
from rag_accel.system.methods import plain_method, undecorated
from rag_accel_adapters.libraries.as_shipped import check_class, package_of
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

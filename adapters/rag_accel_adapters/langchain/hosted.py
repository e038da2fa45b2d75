"""Embeddings on a server, recognised where a call is the same whichever caller makes it.

Calls of several callers are joined only then: LangChain's own class with nothing replaced, clients
that it or the openai package made, a key that is a value, and no client, hook, header, transport or
option that could look at who calls. What counts is looked at in every call, since a tracer or a
gateway may come at any time. Anything unknown leaves the object borrowed.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from itertools import chain
from types import MethodType
from typing import Any

from rag_accel.adoption.embeddings import HostedCalls
from rag_accel.errors import EngineOutputError
from rag_accel_adapters.langchain.as_shipped import (
    PlainMethod,
    is_class_as_shipped,
    is_function_as_shipped,
    is_object_as_shipped,
    package_of,
)


def hosted_calls(obj: Any, cls: type, method: PlainMethod) -> HostedCalls | None:
    """Return how to ask for an ``OpenAIEmbeddings`` of plain class ``cls``; ``None``: borrowed."""
    try:
        values = _values(obj, cls, method)
    except (AttributeError, TypeError):  # a version whose insides are others
        return None
    if values is None:
        return None
    return HostedCalls(
        group=values,
        max_texts=obj.chunk_size,
        ask=partial(_ask, _copied(obj), method(cls, "embed_documents"), values, cls, method),
        alone=partial(_alone, obj),
    )


def _values(obj: Any, cls: type, method: PlainMethod) -> str | None:
    """Return a digest of everything that decides a call, or ``None`` if a caller might."""
    # At this level older clients log what they send, with the context of whichever thread sends.
    if logging.getLogger("openai._base_client").isEnabledFor(logging.DEBUG):
        return None
    if not (_is_known(cls) and is_class_as_shipped(cls, method)):
        return None
    fields = vars(obj)
    if not fields.keys() <= cls.model_fields.keys() or any(  # type: ignore[attr-defined]
        fields.get(name) for name in _USERS
    ):
        return None
    if isinstance(obj.chunk_size, bool) or not isinstance(obj.chunk_size, int):
        return None
    # One retry is what each caller asks with, if a shared call fails.
    if obj.chunk_size < 2 or obj.client._client.max_retries < 1 or callable(obj.openai_api_key):
        return None
    settings = [(name, fields[name]) for name in sorted(fields.keys() - _KEPT_ELSEWHERE)]
    if not all(_is_value(value) for _, value in settings):
        return None
    asks, asks_async = _client_values(obj.client), _client_values(obj.async_client)
    if asks is None or asks != asks_async:  # async callers use the sync client too
        return None
    text = repr((id(obj.client), id(obj.client._client), cls.__qualname__, settings, asks))
    return sha256(text.encode()).hexdigest()  # it holds the key


#: Settings that may act for a caller, or carry what differs between callers.
_USERS = frozenset(
    {
        "azure_ad_async_token_provider",
        "azure_ad_token",
        "azure_ad_token_provider",
        "default_headers",
        "default_query",
        "headers",
        "http_async_client",
        "http_client",
        "http_socket_options",
        "openai_proxy",
    }
)
#: Compared as the clients hold it, since that is what they send.
_KEPT_ELSEWHERE = frozenset({"async_client", "client", "openai_api_key"})


def _is_known(cls: type) -> bool:
    return package_of(cls) == "langchain_openai" and cls.__qualname__ in {
        "AzureOpenAIEmbeddings",
        "OpenAIEmbeddings",
    }


_ATOMS = frozenset({bool, float, int, str, type(None)})


def _is_value(value: Any) -> bool:
    """Tell whether a setting is plain data, which is the same for every caller that reads it."""
    cls = type(value)
    if cls in _ATOMS:
        return True
    if cls is dict:
        return all(map(_is_value, value)) and all(map(_is_value, value.values()))
    if cls in (list, set, tuple, frozenset):
        return all(map(_is_value, value))
    return _is_timeout(value)


def _is_timeout(value: Any) -> bool:
    cls = type(value)
    return cls.__qualname__ in {"NotGiven", "Timeout"} and package_of(cls) in _SENDING


_SENDING = frozenset({"httpx", "httpx2", "openai"})
_CLIENTS = frozenset({"AsyncAzureOpenAI", "AsyncOpenAI", "AzureOpenAI", "OpenAI"})
#: What the openai and langchain_openai packages make where no client is given.
_HTTP_CLIENTS = frozenset(
    {
        "AsyncHttpxClientWrapper",
        "SyncHttpxClientWrapper",
        "_AsyncHttpxClientWrapper",
        "_SyncHttpxClientWrapper",
    }
)
_TRANSPORTS = frozenset({"AsyncHTTPTransport", "HTTPTransport"})
#: Attributes of a client by which it asks another for its credentials.
_CREDENTIALS = (
    "_api_key_provider",
    "_azure_ad_token",
    "_azure_ad_token_provider",
    "_provider",
    "_provider_runtime",
    "_workload_identity_auth",
    "admin_api_key",
    "workload_identity",
)
_SENT = ("api_key", "max_retries", "organization", "project", "_api_version", "_azure_deployment")
_OWN_HEADERS = frozenset({"accept", "accept-encoding", "connection", "user-agent"})
#: What LangChain itself sets on its Azure clients.
_AZURE_AGENT = {"User-Agent": "langchain-partner-python-azure-openai"}


def _client_values(resource: Any) -> str | None:
    """Return what an embeddings resource of a client sends with; ``None`` if it is not shipped."""
    if not is_object_as_shipped(resource):
        return None
    client = resource._client
    for name, value in vars(resource).items():
        is_own = isinstance(value, MethodType) and value.__self__ is client
        if is_own and value.__func__ is not getattr(type(client), value.__name__, None):
            return None
        if not is_own and name not in {"_client", "with_raw_response", "with_streaming_response"}:
            return None
    if type(client).__qualname__ not in _CLIENTS or not is_object_as_shipped(client):
        return None
    if any(getattr(client, name, None) is not None for name in _CREDENTIALS):
        return None
    if not _is_langchains(client._custom_headers, client._custom_query):
        return None
    if not (_is_value(client.timeout) and _is_http_as_made(client._client)):
        return None
    sent = [getattr(client, name, None) for name in _SENT]
    if not all(type(value) in _ATOMS for value in sent):
        return None
    return repr((str(client._base_url), sent, client.timeout, client._custom_query))


def _is_langchains(headers: Mapping[str, Any], query: Mapping[str, Any]) -> bool:
    """Tell whether what is added to each call is empty, or what LangChain adds for Azure."""
    if type(headers) is not dict or type(query) is not dict:
        return False
    return headers in ({}, _AZURE_AGENT) and query.keys() <= {"api-version"} and _is_value(query)


def _is_http_as_made(http: Any) -> bool:
    """Tell whether an HTTP client is as the openai package makes it, without anything added."""
    if type(http).__qualname__ not in _HTTP_CLIENTS:
        return False
    if not is_object_as_shipped(http):
        return False
    transports = [http._transport, *(one for one in http._mounts.values() if one is not None)]
    return (
        http._auth is None
        and all(map(is_function_as_shipped, chain.from_iterable(http._event_hooks.values())))
        and not str(http._params)
        and http._headers.keys() <= _OWN_HEADERS
        and all(map(_is_transport_as_made, transports))
    )


def _is_transport_as_made(transport: Any) -> bool:
    return (
        type(transport).__qualname__ in _TRANSPORTS
        and is_object_as_shipped(transport)
        and is_object_as_shipped(transport._pool)
    )


def _copied(obj: Any) -> Any:
    """Return the object with settings of its own, so that a later change is not this call's."""
    copied = obj.model_copy()
    if copied.model_kwargs:
        copied.model_kwargs = copy.deepcopy(copied.model_kwargs)
    return copied


def _ask(
    copied: Any,
    embed_documents: Callable[..., Sequence[Any]],
    values: str,
    cls: type,
    method: PlainMethod,
    texts: list[str],
) -> Sequence[Any]:
    """Ask the server once, by LangChain's own method on a copy of the object."""
    if _values(copied, cls, method) != values:
        raise EngineOutputError(
            "the client has changed since the call was made",
            where="HostedEmbeddingEngine",
            hint="each caller asks alone",
        )
    asking = copied.model_copy()
    asking.client = _InOrder(copied.client._client.with_options(max_retries=0).embeddings)
    return embed_documents(asking, texts)


def _alone(obj: Any) -> Any:
    alone = _copied(obj)
    retries = max(0, obj.client._client.max_retries - 1)
    alone.client = obj.client._client.with_options(max_retries=retries).embeddings
    alone.async_client = obj.async_client._client.with_options(max_retries=retries).embeddings
    return alone


class _InOrder:
    """An embeddings resource whose answers are in the order of what was sent."""

    def __init__(self, resource: Any) -> None:
        self._resource = resource

    def create(self, *, input: Any, **others: Any) -> dict[str, Any]:
        """Return the answer as data, sorted by ``index``.

        Raises:
            EngineOutputError: an index is missing or there twice.
        """
        answer = self._resource.create(input=input, **others).model_dump()
        count = len(input) if isinstance(input, list) else 1
        answer["data"] = _in_order(answer["data"], count)
        return answer


def _in_order(data: Iterable[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    ordered = sorted(data, key=lambda one: one["index"])
    if [one["index"] for one in ordered] != list(range(count)):
        raise EngineOutputError(
            "a server's answer does not say which vector is whose",
            where="HostedEmbeddingEngine",
            found=f"{len(ordered)} vectors",
            valid="each index once",
        )
    return ordered

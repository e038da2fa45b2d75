"""Clients of the openai package, whose calls are perhaps the same whichever caller makes them.

Calls of several callers are joined only where nothing of a client's can look at who calls: the
package made it, its key is a value, and no hook, header, transport or option is the user's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import chain
from operator import attrgetter
from types import MethodType
from typing import Any

from rag_accel.errors import EngineOutputError
from rag_accel_adapters.libraries.as_shipped import (
    is_function_as_shipped,
    is_object_as_shipped,
    package_of,
)

_ATOMS = frozenset({bool, float, int, str, type(None)})


def is_value(value: Any) -> bool:
    """Tell whether a setting is plain data, which is the same for every caller that reads it."""
    cls = type(value)
    if cls in _ATOMS:
        return True
    if cls is dict:
        return all(map(is_value, value)) and all(map(is_value, value.values()))
    if cls in (list, set, tuple, frozenset):
        return all(map(is_value, value))
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


def group_of(values: Callable[[Any], object], obj: Any) -> str | None:
    """Return a digest of everything that decides an object's calls, or ``None`` if a caller might.

    Args:
        values: returns what decides them; None if a caller might, or nobody knows.
        obj: the object.
    """
    # Clients that log what they send do so with the context of the thread that sends.
    if logging.getLogger("openai._base_client").isEnabledFor(logging.DEBUG):
        return None
    try:
        found = values(obj)
    except (AttributeError, KeyError, TypeError):  # a version whose insides are others
        return None
    return None if found is None else sha256(repr(found).encode()).hexdigest()  # it holds the key


def client_values(resource: Any) -> str | None:
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
    if not _is_own(client._custom_headers, client._custom_query):
        return None
    if not (is_value(client.timeout) and _is_http_as_made(client._client)):
        return None
    sent = [getattr(client, name, None) for name in _SENT]
    if not all(type(value) in _ATOMS for value in sent):
        return None
    return repr((str(client._base_url), sent, client.timeout, client._custom_query))


def _is_own(headers: Mapping[str, Any], query: Mapping[str, Any]) -> bool:
    """Tell whether what is added to each call is empty, or what LangChain adds for Azure."""
    if type(headers) is not dict or type(query) is not dict:
        return False
    return headers in ({}, _AZURE_AGENT) and query.keys() <= {"api-version"} and is_value(query)


def _is_http_as_made(http: Any) -> bool:
    """Tell whether an HTTP client is as the openai package makes it, without anything added."""
    if type(http).__qualname__ not in _HTTP_CLIENTS:
        return False
    if not is_object_as_shipped(http):
        return False
    transports = [http._transport, *(mount for mount in http._mounts.values() if mount is not None)]
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


class InOrder:
    """An embeddings resource whose answers are in the order of what was sent."""

    def __init__(self, resource: Any) -> None:
        self._resource = resource

    def create(self, *, input: Any, **others: Any) -> Any:
        """Return the answer, its data sorted by ``index``.

        Raises:
            EngineOutputError: an index is missing or there twice.
        """
        answer = self._resource.create(input=input, **others)
        count = len(input) if isinstance(input, list) else 1
        return answer.model_copy(update={"data": _in_order(answer.data, count)})


def _in_order(data: Iterable[Any], count: int) -> list[Any]:
    ordered = sorted(data, key=attrgetter("index"))
    if [found.index for found in ordered] != list(range(count)):
        raise EngineOutputError(
            "a server's answer does not say which vector is whose",
            where="HostedEmbeddingEngine",
            found=f"{len(ordered)} vectors",
            valid="each index once",
        )
    return ordered


def ask_unchanged(
    values: Callable[[Any], object],
    own: Any,
    group: str,
    ask: Callable[[Any, list[str]], Sequence[Any]],
    texts: list[str],
) -> Sequence[Any]:
    """Return ``ask(own, texts)``.

    Raises:
        EngineOutputError: the object's ``group_of`` these values is another by now.
    """
    if group_of(values, own) != group:
        raise EngineOutputError(
            "the client has changed since the call was made",
            where="HostedEmbeddingEngine",
            hint="each caller asks alone",
        )
    return ask(own, texts)

"""Clients of the openai package, whose calls are perhaps the same whichever caller makes them.

Calls of several callers are joined only where nothing of a client's can look at who calls: its
class and all that it sends by are as shipped, or wrapped by a known tracer, and its settings are
plain data, which are compared.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from hashlib import sha256
from itertools import chain, count
from operator import attrgetter
from types import MethodType
from typing import Any

from rag_accel.adoption.known_classes import NotAdoptedError
from rag_accel.engines.embedding.hosted_engine import ServerAnswer
from rag_accel.engines.http.endpoints import EndpointGate
from rag_accel.errors import EngineOutputError
from rag_accel.system.classes import full_name
from rag_accel.system.weak_maps import WeakIdDict
from rag_accel_adapters.libraries.as_shipped import check_function, check_object, package_of
from rag_accel_adapters.libraries.openai_limited import limited_resource

#: Why calls are not shared, and what would change it.
NO_RETRY = "max_retries=0 leaves no call to a caller whose shared one has failed"
RETRY = "max_retries=1 or more"
DIFFERENT_CLIENTS = (
    "the async client sends otherwise than the other, by which shared calls are sent",
    "the same settings for both, as http_client and http_async_client",
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
#: Clients of the HTTP libraries, and what openai and langchain_openai derive from them.
_HTTP_CLIENTS = frozenset(
    {
        "AsyncClient",
        "AsyncHttpxClientWrapper",
        "Client",
        "SyncHttpxClientWrapper",
        "_AsyncHttpxClientWrapper",
        "_SyncHttpxClientWrapper",
    }
)
_TRANSPORTS = frozenset({"AsyncHTTPTransport", "HTTPTransport"})
#: Attributes of a client by which it asks another for its credentials.
_CREDENTIALS = (
    "_api_key_provider",
    "_azure_ad_token_provider",
    "_provider",
    "_provider_runtime",
    "_workload_identity_auth",
    "admin_api_key",
    "workload_identity",
)
_SENT = (
    "api_key",
    "max_retries",
    "organization",
    "project",
    "_api_version",
    "_azure_ad_token",
    "_azure_deployment",
)


def group_of(values: Callable[[Any], object], obj: Any) -> str:
    """Return a digest of everything that decides an object's calls.

    Args:
        values: returns what decides them, or raises ``NotAdoptedError``.
        obj: the object.

    Raises:
        NotAdoptedError: a caller might decide a call, or nobody knows.
    """
    # Clients that log what they send do so with the context of the thread that sends.
    if logging.getLogger("openai._base_client").isEnabledFor(logging.DEBUG):
        raise NotAdoptedError("the logger openai logs all that is sent", "a level above DEBUG")
    return digest_of(values, obj)


def digest_of(values: Callable[[Any], object], obj: Any) -> str:
    """Return as ``group_of`` does a digest for calls that are made where their caller is."""
    try:
        found = values(obj)
    except (AttributeError, KeyError, TypeError) as error:  # a version whose insides are others
        raise NotAdoptedError(
            f"this version of {package_of(type(obj))} is not known: {type(error).__name__}"
        ) from None
    return sha256(repr(found).encode()).hexdigest()  # it holds the key


def client_values(resource: Any) -> tuple[Any, ...]:
    """Return what an embeddings resource of a client sends with.

    Raises:
        NotAdoptedError: a caller might decide it.
    """
    check_object(resource, "client")
    client = resource._client
    if type(client.max_retries) is not int or client.max_retries < 1:
        raise NotAdoptedError(NO_RETRY, RETRY)
    for name, value in vars(resource).items():
        is_own = isinstance(value, MethodType) and value.__self__ is client
        is_replaced = is_own and value.__func__ is not getattr(type(client), value.__name__, None)
        is_known = is_own or name in {"_client", "with_raw_response", "with_streaming_response"}
        if is_replaced or not is_known:
            raise NotAdoptedError(f"client: {type(resource).__name__}.{name} is replaced on it")
    if type(client).__qualname__ not in _CLIENTS:
        raise NotAdoptedError(f"client: it is a {full_name(type(client))}", f"one of {_ANY_CLIENT}")
    check_object(client, "client")
    for name in _CREDENTIALS:
        if getattr(client, name, None) is not None:
            raise NotAdoptedError(
                f"{name.lstrip('_')} may give each caller another key", "a key that is a text"
            )
    sent = [getattr(client, name, None) for name in _SENT]
    sent += [client._custom_headers, client._custom_query, client.timeout]
    for name, value in zip(
        (*_SENT, "default_headers", "default_query", "timeout"), sent, strict=True
    ):
        check_value(value, name.lstrip("_"))
    return (str(client._base_url), sent, http_values(client._client))


def values_of_client(client: Any) -> tuple[Any, ...]:
    """Return what the embeddings resource of a client sends with.

    Raises:
        NotAdoptedError: a caller might decide it.
    """
    if client.embeddings._client is not client:
        raise NotAdoptedError("the client's embeddings are another client's")
    return client_values(client.embeddings)


_ANY_CLIENT = ", ".join(sorted(_CLIENTS))


def check_value(value: Any, name: str) -> None:
    """Check that a setting is plain data, which is the same for every caller.

    Raises:
        NotAdoptedError: it is not.
    """
    if not is_value(value):
        raise NotAdoptedError(
            f"{name} holds what is no plain data, but a {full_name(type(value))}",
            "texts and numbers",
        )


def http_values(http: Any) -> tuple[Any, ...]:
    """Return what an HTTP client adds to what it sends, and the way that takes.

    Raises:
        NotAdoptedError: it has hooks, an authentication or a transport of the program's.
    """
    cls = type(http)
    if cls.__qualname__ not in _HTTP_CLIENTS or package_of(cls) not in _HTTP_PACKAGES:
        raise NotAdoptedError(f"http_client is a {full_name(cls)}", "a client of httpx2 or httpx")
    check_object(http, "http_client")
    if http._auth is not None:
        raise NotAdoptedError("http_client has an auth of its own", "a key, or default_headers")
    for hook in chain.from_iterable(http._event_hooks.values()):
        check_function(hook, "a hook in event_hooks of http_client")
    mounts = sorted(http._mounts.items(), key=lambda mount: repr(mount[0].pattern))
    ways = [("", http._transport), *((pattern.pattern, way) for pattern, way in mounts)]
    return (
        sorted((name.lower(), value) for name, value in http._headers.raw),
        str(http._params),
        [(pattern, None if way is None else _way_values(way)) for pattern, way in ways],
    )


def number_of_http(client: Any) -> int:
    """Return a number of the HTTP client by which a client sends, which no other ever has.

    Objects that share it share connections, and the certificates by which those were made.
    """
    return number_of(client._client)


def number_of(http: Any) -> int:
    """Return a number of an HTTP client, which no other ever has."""
    return _numbers.get(http) or _numbers.add(http, next(_next))


_numbers: WeakIdDict[int] = WeakIdDict()
_next = count(1)
_HTTP_PACKAGES = frozenset({"httpx", "httpx2", "langchain_openai", "openai"})


def _way_values(transport: Any) -> tuple[Any, ...]:
    cls = type(transport)
    if cls.__qualname__ not in _TRANSPORTS or package_of(cls) not in _HTTP_PACKAGES:
        raise NotAdoptedError(f"http_client sends by a {full_name(cls)}", "its own transport")
    check_object(transport, "the transport of http_client")
    pool = transport._pool
    check_object(pool, "the connections of http_client")
    tls = pool._ssl_context
    return (
        str(getattr(pool, "_proxy_url", "")),
        None if tls is None else (tls.verify_mode, tls.check_hostname),
    )


class InOrder:
    """An embeddings resource whose answers are in the order of what was sent.

    Attributes:
        model: that the server says has answered last.
    """

    def __init__(self, resource: Any) -> None:
        self._resource = resource
        self.model = ""

    def create(self, *, input: Any, **others: Any) -> Any:
        """Return the answer, its data sorted by ``index``.

        Raises:
            EngineOutputError: an index is missing or there twice.
        """
        answer = self._resource.create(input=input, **others)
        self.model = answer.model if isinstance(answer.model, str) else ""
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
    ask: Callable[[Any, list[str], EndpointGate | None], ServerAnswer],
    texts: list[str],
    gate: EndpointGate | None = None,
) -> ServerAnswer:
    """Return ``ask(own, texts, gate)``.

    Raises:
        EngineOutputError: the object's ``group_of`` these values is another by now.
    """
    try:
        is_same = group_of(values, own) == group
    except NotAdoptedError:
        is_same = False
    if not is_same:
        raise EngineOutputError(
            "the client has changed since the call was made",
            where="HostedEmbeddingEngine",
            hint="each caller asks alone",
        )
    return ask(own, texts, gate)


def asked_once(client: Any, gate: EndpointGate | None) -> InOrder:
    """Return a client's embeddings resource that asks once, by a gate, and answers in order."""
    resource = client.with_options(max_retries=0).embeddings
    return InOrder(resource if gate is None else limited_resource(resource, gate))

"""Embeddings classes whose clients send a list of texts in one HTTP call, and never again.

Calls of several callers are joined only where nothing of an object's can look at who calls: its
class and its clients are as shipped, or wrapped by a known tracer, and its settings are plain data,
which are compared. A call that is shared runs the class's own methods on a copy of the object.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from rag_accel.adoption.embeddings import EmbeddingsClass, HostedCalls, server_class
from rag_accel.adoption.known_classes import NotAdoptedError
from rag_accel.adoption.proxies import replaced
from rag_accel.engines.embedding.hosted_engine import MAX_CALL_TEXTS, ServerAnswer
from rag_accel.engines.http.endpoints import EndpointGate, EndpointPlace
from rag_accel.errors import EngineOutputError
from rag_accel.system.classes import full_name
from rag_accel.system.methods import plain_method, undecorated
from rag_accel_adapters.libraries.as_shipped import check_class, check_function, check_object
from rag_accel_adapters.libraries.openai_clients import (
    DIFFERENT_CLIENTS,
    ask_unchanged,
    check_value,
    group_of,
    http_values,
    number_of_http,
)

#: What switches off what acts on these classes.
_UNLESS = (
    "a token that a function gives",
    "hooks, an auth or a transport of the program's in an HTTP client",
    "a method that neither the library nor a known tracer wrote",
)


@dataclass(frozen=True, slots=True)
class Protocol:
    """The senders of a class's objects, and everything that decides what they send.

    Args:
        name: of the protocol, by which objects of all frameworks share an endpoint.
        clients: attributes that hold the client for threads and the one for loops; empty where the
            object sends by itself.
        classes: of these clients.
        methods: of the clients, or of the object, by which each of the two sends.
        values: returns all but settings that decides a call of an object, or raises
            ``NotAdoptedError``.
        endpoint: returns what tells an object's endpoint from others, its key or token last.
    """

    name: str
    clients: tuple[str, ...]
    classes: frozenset[str]
    methods: tuple[str, ...]
    values: Callable[[Any], object]
    endpoint: Callable[[Any], tuple[Any, ...]]

    def limited(self, obj: Any, gate: EndpointGate) -> Any:
        """Return an object as it sends by a gate; itself if its clients are others."""
        if any(full_name(type(getattr(obj, name))) not in self.classes for name in self.clients):
            return obj
        *where, secret = self.endpoint(obj)
        return self.sending(obj, partial(_by_gate, gate, (self.name, *where, hash(secret))))

    def sending(self, obj: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
        """Return an object whose senders are those of ``obj``, each wrapped."""
        if not self.clients:
            return replaced(obj, **{name: wrap(getattr(obj, name)) for name in self.methods})
        clients = {
            holder: SimpleNamespace(**{name: wrap(getattr(getattr(obj, holder), name))})
            for holder, name in zip(self.clients, self.methods, strict=True)
        }
        return replaced(obj, **clients)


@dataclass(frozen=True, slots=True)
class HttpEmbeddings:
    """A class of embeddings objects that send their texts by a protocol.

    Args:
        name: its full name.
        leaves: the methods by which its objects embed.
        embed: the one of them that takes a list and blocks.
        protocol: how they send.
        apart: settings that decide nothing of what is sent, or that the clients hold.
        ask_queries: returns the vectors of queries, which it prepares otherwise than documents.
        max_texts: the setting that says how many texts a call holds.
    """

    name: str
    leaves: Sequence[str]
    embed: str
    protocol: Protocol
    apart: frozenset[str] = frozenset()
    ask_queries: Callable[[Any, list[str]], Sequence[Any]] | None = None
    max_texts: str = ""

    def row(self) -> EmbeddingsClass:
        """Return the class as one whose small requests share calls."""
        return server_class(self.hosted_calls, self.protocol.limited, _UNLESS)

    def hosted_calls(self, obj: Any, cls: type) -> HostedCalls:
        """Return how to ask for an object of plain class ``cls``.

        Raises:
            NotAdoptedError: a caller might decide a call.
        """
        values = partial(self._values, cls)
        group = group_of(values, obj)
        # With settings of its own, so that a later change is not this call's.
        own = replaced(obj, **copy.deepcopy(self._settings(cls, obj)))
        ask = partial(ask_unchanged, values, own, group)
        # Without the tracers around it, which trace what callers ask for, not shared calls.
        embed = undecorated(plain_method(cls, self.embed))
        return HostedCalls(
            group=group,
            max_texts=getattr(obj, self.max_texts) if self.max_texts else MAX_CALL_TEXTS,
            ask=partial(ask, partial(self._ask, embed)),
            ask_queries=partial(ask, partial(self._ask, self.ask_queries or embed)),
            alone=lambda attempts: obj,
            attempts=1,
        )

    def _settings(self, cls: Any, obj: Any) -> dict[str, Any]:
        names = cls.model_fields.keys() - self.apart - {*self.protocol.clients}
        return {name: vars(obj)[name] for name in sorted(names)}

    def _values(self, cls: Any, obj: Any) -> tuple[Any, ...]:
        check_plain(obj, cls, self.name, self.leaves)
        settings = self._settings(cls, obj)
        for name, value in settings.items():
            check_value(value, name)
        if self.max_texts and settings[self.max_texts] < 2:
            raise NotAdoptedError(f"{self.max_texts} lets no texts share a call", "2 or more")
        return self.name, settings, self.protocol.values(obj)

    def _ask(
        self,
        embed: Callable[[Any, list[str]], Sequence[Any]],
        own: Any,
        texts: list[str],
        gate: EndpointGate | None,
    ) -> ServerAnswer:
        """Ask the server once, by the class's own method on a copy of the object."""
        # Some classes strip texts, and servers answer to an empty list with no vector.
        if not all(map(str.strip, texts)):
            raise EngineOutputError(
                "a text is blank", where="HostedEmbeddingEngine", hint="its caller asks alone"
            )
        return ServerAnswer(embed(own if gate is None else self.protocol.limited(own, gate), texts))


class _RefusedError(Exception):
    """The answer of a server that refuses a call, which a client has returned."""

    def __init__(self, answer: Any, status_code: int) -> None:
        super().__init__("the server refuses the call")
        self.response, self.status_code = answer, status_code


def _by_gate(gate: EndpointGate, key: Hashable, send: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that sends once, by a gate."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return gate.call(key, lambda place: _checked(send(*args, **kwargs), place), 1)
        except _RefusedError as error:
            return error.response

    async def acall(*args: Any, **kwargs: Any) -> Any:
        async def ask(place: EndpointPlace) -> Any:
            return _checked(await send(*args, **kwargs), place)

        try:
            return await gate.acall(key, ask, 1)
        except _RefusedError as error:
            return error.response

    return acall if inspect.iscoroutinefunction(send) else call


def _checked(answer: Any, place: EndpointPlace) -> Any:
    """Return an answer; raise a refusal that the client of TEI, or of requests, does not."""
    if full_name(type(answer)) == "requests.models.Response":
        if answer.status_code >= 400:
            raise _RefusedError(answer, answer.status_code)
        place.headers = answer.headers
    elif isinstance(answer, dict) and str(answer.get("error_type")).lower() == "overloaded":
        raise _RefusedError(answer, 429)
    return answer


def check_plain(obj: Any, cls: Any, name: str, leaves: Sequence[str]) -> None:
    """Check that an object's plain class is that of a name, as shipped, and all it holds.

    Raises:
        NotAdoptedError: it is a subclass, or something was replaced or added.
    """
    if full_name(cls) != name:
        raise NotAdoptedError(f"{cls.__qualname__} is a class of the program's", "its base class")

    check_class(cls, leaves)
    private = obj.__pydantic_private__ or {}
    more = (vars(obj).keys() - cls.model_fields.keys()) | (
        private.keys() - cls.__private_attributes__.keys()
    )
    if more:
        raise NotAdoptedError(f"{min(more)} is set on the object")


def _both(values: Callable[[Any], object], client: Any, async_client: Any) -> Any:
    """Return what both clients of an object send with.

    Raises:
        NotAdoptedError: it is not the same, or a caller might decide it.
    """
    found = values(client)
    if values(async_client) != found:
        raise NotAdoptedError(*DIFFERENT_CLIENTS)
    return found


def _check_client(client: Any, classes: frozenset[str]) -> None:
    if full_name(type(client)) not in classes:
        raise NotAdoptedError(f"its client is a {full_name(type(client))}", "the class's own")
    check_object(client, "client")


def _ollama_values(obj: Any) -> tuple[Any, ...]:
    kwargs = [getattr(obj, f"{kind}_client_kwargs", None) for kind in ("sync", "async")]
    if kwargs[0] != kwargs[1]:  # of httpx, whose clients tell not all of them
        raise NotAdoptedError(*DIFFERENT_CLIENTS)
    both = _both(_ollama_client_values, obj._client, obj._async_client)
    return number_of_http(obj._client), both


def _ollama_client_values(client: Any) -> tuple[Any, ...]:
    _check_client(client, _OLLAMA_CLIENTS)
    http = client._client
    return str(http._base_url), repr(http._timeout), http.follow_redirects, http_values(http)


_OLLAMA_CLIENTS = frozenset({"ollama._client.AsyncClient", "ollama._client.Client"})


def _ollama_endpoint(obj: Any) -> tuple[Any, ...]:
    http = obj._client._client
    return str(http.base_url), http.headers.get("authorization")


def _hub_values(obj: Any) -> tuple[Any, ...]:
    http: Any = sys.modules["huggingface_hub.utils._http"]
    if http.constants.HF_DEBUG:  # with the context of the thread that sends
        raise NotAdoptedError("huggingface_hub logs all that is sent", "no HF_DEBUG")
    for name in ("_GLOBAL_ASYNC_CLIENT_FACTORY", "_GLOBAL_CLIENT_FACTORY"):
        check_function(vars(http)[name], f"huggingface_hub's {name}")
    both = _both(_hub_client_values, obj.client, obj.async_client)
    session, own = http_values(http.get_session()), obj.async_client._async_client
    if own is not None and http_values(own) != session:
        raise NotAdoptedError(*DIFFERENT_CLIENTS)
    # A client without a token sends that of the environment or of a file.
    token = obj.client.token or sys.modules["huggingface_hub"].get_token()
    return token, both, session


def _hub_client_values(client: Any) -> dict[str, Any]:
    _check_client(client, _HUB_CLIENTS)
    for name in ("get_provider_helper", "hf_raise_for_status"):
        check_function(getattr(sys.modules[type(client).__module__], name), name)
    sent = {name: value for name, value in vars(client).items() if name not in _HUB_STATE}
    for name, value in sent.items():
        check_value(value, name)
    return sent


_HUB_STATE = frozenset({"_async_client", "exit_stack"})
_HUB_CLIENTS = frozenset(
    {
        "huggingface_hub.inference._client.InferenceClient",
        "huggingface_hub.inference._generated._async_client.AsyncInferenceClient",
    }
)


def _hub_endpoint(obj: Any) -> tuple[Any, ...]:
    return str(obj.client.provider), str(obj.client.model), obj.client.token


def _tei_values(obj: Any) -> tuple[Any, ...]:
    """Check all by which an object sends, which makes a client of httpx for each call."""
    module: Any = sys.modules[type(obj).__module__]
    for name in ("format_query", "format_text"):
        check_function(getattr(module, name), name)
    check_httpx()
    return ()


def check_httpx() -> None:
    """Check the classes of which a client of httpx is made for each call.

    Raises:
        NotAdoptedError: one is not as shipped.
    """
    for name in ("AsyncClient", "AsyncHTTPTransport", "Client", "HTTPTransport"):
        cls = getattr(sys.modules["httpx"], name)
        if full_name(cls) != f"httpx.{name}":
            raise NotAdoptedError(f"httpx.{name} is a {full_name(cls)}", "httpx's own class")
        check_class(cls, ())


def tei_queries(own: Any, texts: list[str]) -> Sequence[Any]:
    """Return the vectors of queries, with the instruction of LlamaIndex's object for TEI."""
    prepare: Any = sys.modules[type(own).__module__].format_query
    return own._call_api([prepare(text, own.model_name, own.query_instruction) for text in texts])


def ollama_queries(own: Any, texts: list[str]) -> Sequence[Any]:
    """Return the vectors of queries, with the instruction of LlamaIndex's object for Ollama."""
    return own.get_general_text_embeddings([own._format_query(text) for text in texts])


def _tei_endpoint(obj: Any) -> tuple[Any, ...]:
    token = obj.auth_token
    return obj.base_url, obj.endpoint, id(token) if callable(token) else token


OLLAMA = Protocol(
    name="ollama",
    clients=("_client", "_async_client"),
    classes=_OLLAMA_CLIENTS,
    methods=("embed", "embed"),
    values=_ollama_values,
    endpoint=_ollama_endpoint,
)
HUB = Protocol(
    name="huggingface_hub",
    clients=("client", "async_client"),
    classes=_HUB_CLIENTS,
    methods=("feature_extraction", "feature_extraction"),
    values=_hub_values,
    endpoint=_hub_endpoint,
)
TEI = Protocol(
    name="tei",
    clients=(),
    classes=frozenset(),
    methods=("_call_api", "_acall_api"),
    values=_tei_values,
    endpoint=_tei_endpoint,
)

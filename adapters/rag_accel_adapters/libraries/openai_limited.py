"""Resources and clients of the openai package whose calls wait for their turn at the endpoint.

Calls are limited where a resource sends them, below ``create``, ``parse``, ``stream`` and
``with_raw_response``: a tracer around these sees one call, as it does when the client tries again
by itself. The attempts are made here in place of the client's, as many as it would make.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from rag_accel.engines.http.endpoints import EndpointGate, EndpointPlace, Endpoints

_ASYNC = frozenset({"AsyncAPIClient", "AsyncAPIResource"})
_RETRY_COUNT = "x-stainless-retry-count"
#: attributes of a client that return its credentials; they count by identity
_PROVIDERS = ("_api_key_provider", "_azure_ad_token_provider", "_workload_identity_auth")


def limited_resource(resource: Any, gate: EndpointGate) -> Any:
    """Return a resource whose calls go through the gate; all else is as it was.

    Args:
        resource: of chat completions, completions, embeddings or responses; for threads or loops.
        gate: the way to the endpoint.
    """
    other = copy.copy(resource)
    for name in ("with_raw_response", "with_streaming_response"):
        vars(other).pop(name, None)  # made once, of the other's methods
    send = _asend if _is_async(resource) else _send
    vars(other)["_post"] = partial(send, gate, resource._client, resource._post)
    vars(other)["is_limited"] = True
    return other


def ending_in_time(resource: Any, gate: EndpointGate) -> Any:
    """Return a resource whose calls end by the deadline of a gate, and wait for nobody's turn.

    It is for servers that are chosen among several: what one refuses, another answers.
    """
    if gate.deadline() is None:
        return resource
    return limited_resource(resource, replace(gate, endpoints=Endpoints()))


def is_limited(sender: Any) -> bool:
    """Tell whether a resource or a client sends through a gate already."""
    return isinstance(sender, LimitedClient) or "is_limited" in vars(sender)


class LimitedClient:
    """A client whose resources send through a gate; all else is the client's own.

    Args:
        get: returns the client, made with the first call.
        gate: the way to the endpoint.
    """

    def __init__(self, get: Callable[[], Any], gate: EndpointGate) -> None:
        self._get, self._gate = get, gate

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._get(), name)
        if not type(found).__module__.startswith("openai."):
            return found
        if hasattr(found, "_client") or name.startswith("with_"):
            return type(found)(self)  # as the client itself makes it
        return found

    @property
    def post(self) -> Any:
        """Return the method by which resources send."""
        client = self._get()
        return partial(_asend if _is_async(client) else _send, self._gate, client, client.post)


def endpoint_key(client: Any, body: Any = None) -> Hashable:
    """Return what tells the endpoint of a client's next call from others; it holds no secret.

    Args:
        client: of the openai package.
        body: of the call, whose model is the deployment where an Azure client names none.
    """
    own = (base for base in type(client).__mro__ if base.__module__.partition(".")[0] == "openai")
    name = next(own, type(client)).__name__.removeprefix("Async")
    found = [getattr(client, part, None) for part in _PROVIDERS]
    providers = tuple(id(provider) for provider in found if provider is not None)
    # The keys of a provider change all the time, and its client may hold the latest.
    parts = () if providers else ("api_key", "_azure_ad_token")
    secrets = hash(tuple(str(getattr(client, part, None)) for part in parts))
    model = body.get("model") if name.startswith("Azure") and isinstance(body, Mapping) else None
    return name, str(client.base_url), str(model), secrets, providers


def _send(
    gate: EndpointGate, client: Any, post: Any, path: str, *, options: Any = None, **others: Any
) -> Any:
    options = _with_idempotency_key(client, options)

    def ask(place: EndpointPlace) -> Any:
        with _in_time(place):
            answer = post(path, options=_of_attempt(client, options, place), **others)
        _note(answer, place, "close", is_stream=others.get("stream"))
        return answer

    key = endpoint_key(client, others.get("body"))
    return gate.call(key, ask, _attempts(client, options))


async def _asend(
    gate: EndpointGate, client: Any, post: Any, path: str, *, options: Any = None, **others: Any
) -> Any:
    if not _is_asyncio():
        return await post(path, options=options or {}, **others)
    options = _with_idempotency_key(client, options)

    async def ask(place: EndpointPlace) -> Any:
        with _in_time(place):
            answer = await post(path, options=_of_attempt(client, options, place), **others)
        _note(answer, place, "aclose", is_stream=others.get("stream"))
        return answer

    key = endpoint_key(client, others.get("body"))
    return await gate.acall(key, ask, _attempts(client, options))


def _is_asyncio() -> bool:
    """Tell whether a loop of asyncio runs; the package also works with others."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _attempts(client: Any, options: Mapping[str, Any]) -> int:
    return options.get("max_retries", client.max_retries) + 1


def _with_idempotency_key(client: Any, options: Any) -> dict[str, Any]:
    """Return options by which the server knows that attempts are the same call's."""
    sent = dict(options or {})
    if sent.get("idempotency_key") is None:
        sent["idempotency_key"] = client._idempotency_key()
    return sent


def _of_attempt(client: Any, options: dict[str, Any], place: EndpointPlace) -> dict[str, Any]:
    """Return the options of one attempt, which the client does not repeat, nor outlives its time.

    Raises:
        DeadlineError: there is no time left for it.
    """
    sent = {**options, "max_retries": 0}
    if place.num_retries:
        sent["headers"] = {_RETRY_COUNT: str(place.num_retries), **(options.get("headers") or {})}
    left_s = place.left_s()
    if left_s is not None:
        own = options.get("timeout", client.timeout)
        sent["timeout"] = shortened(own if is_given(own) else client.timeout, left_s)
    return sent


def is_given(timeout: Any) -> bool:
    """Tell whether a caller has set a timeout, if only to None."""
    return type(timeout).__name__ not in ("NotGiven", "Omit")


def shortened(own: Any, left_s: float) -> Any:
    """Return a timeout of at most ``left_s`` seconds; the client's own where that is shorter.

    Args:
        own: seconds, a ``Timeout`` of httpx or httpx2, or None for ever.
        left_s: seconds.
    """
    if own is None:
        return left_s
    if isinstance(own, int | float):
        return min(own, left_s)
    parts = {part: getattr(own, part) for part in ("connect", "read", "write", "pool")}
    least = {part: left_s if s is None else min(s, left_s) for part, s in parts.items()}
    return own if least == parts else type(own)(**least)


@contextmanager
def _in_time(place: EndpointPlace) -> Iterator[None]:
    """Turn the timeout of a client that fires at its call's deadline into a DeadlineError."""
    try:
        yield
    except Exception as error:
        if (late := place.late(error)) is not None:
            raise late from error
        raise


def _read_in_time(place: EndpointPlace, chunks: Iterator[bytes]) -> Iterator[bytes]:
    with _in_time(place):
        yield from chunks


async def _aread_in_time(
    place: EndpointPlace, chunks: AsyncGenerator[bytes, None]
) -> AsyncIterator[bytes]:
    with _in_time(place):
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk


def _note(answer: Any, place: EndpointPlace, close: str, *, is_stream: Any) -> None:
    """Read the headers of an answer; the place of a stream is kept until its response closes."""
    response = getattr(answer, "http_response", None) or getattr(answer, "response", None)
    headers = getattr(response, "headers", None)
    if not isinstance(headers, Mapping):
        return
    place.headers = headers
    if not is_stream:
        return
    close_own = getattr(response, close)  # it holds itself, as the package's streams do

    def close_and_release() -> Any:
        place.release()
        return close_own()

    vars(response)[close] = close_and_release
    if place.deadline is not None:
        name, read = "iter_bytes", _read_in_time
        if close == "aclose":
            name, read = "aiter_bytes", _aread_in_time
        chunks = getattr(response, name)
        vars(response)[name] = lambda *size: read(place, chunks(*size))
    place.keep(response)


def _is_async(obj: Any) -> bool:
    return any(base.__name__ in _ASYNC for base in type(obj).__mro__)

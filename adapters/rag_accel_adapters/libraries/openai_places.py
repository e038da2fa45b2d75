"""Calls of a program's openai client that go to another server of the same model."""

from __future__ import annotations

import weakref
from typing import Any

from rag_accel.adoption.served_models import ServedPlace

_READING = "x-stainless-"


def may_be_sent_elsewhere(resource: Any) -> bool:
    """Tell whether calls may go to other servers; not where a client has an ``auth`` of its own."""
    client = getattr(resource._client, "_client", None)
    return client is not None and getattr(client, "auth", None) is None


def resource_at(resource: Any, place: ServedPlace) -> Any:
    """Return a resource that asks a server."""
    return type(resource)(client_at(resource._client, place))


def client_at(client: Any, place: ServedPlace) -> Any:
    """Return a client of a server, on the connections of the program's own.

    Where other servers are left, it does not try again by itself. Another server than the program's
    sees neither its key nor its headers.
    """
    from openai import Omit

    own: dict[str, Any] = {} if place.is_last else {"max_retries": 0}
    if is_own(client, place):
        return client.with_options(**own) if own else client
    names = ("OpenAI-Organization", "OpenAI-Project")
    return client.with_options(
        base_url=place.base_url,
        api_key=place.api_key or "none",
        set_default_headers=dict.fromkeys(names, Omit()),
        set_default_query={},
        **own,
    )


def is_own(client: Any, place: ServedPlace) -> bool:
    """Tell whether a server is the one that the program's client asks."""
    return str(client.base_url).rstrip("/") == place.base_url


def arguments_at(client: Any, place: ServedPlace, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call for a server; another one sees no header of the program's."""
    sent = {**kwargs, "model": place.model}
    headers = sent.get("extra_headers")
    if headers and not is_own(client, place):
        # The client's own word on how it reads the answer.
        reading = {name: headers[name] for name in headers if name.lower().startswith(_READING)}
        sent["extra_headers"] = reading
    return sent


def held(answer: Any, place: ServedPlace | None) -> Any:
    """Return an answer whose place is given back at its end, or when it goes."""
    if place is None:
        return answer
    if hasattr(answer, "__aiter__"):
        return _AsyncPlacedStream(answer, place)
    if hasattr(answer, "__next__"):
        return _SyncPlacedStream(answer, place)
    place.ended()
    return answer


class _PlacedStream:
    """A stream of the openai package that gives its place back at its end."""

    def __init__(self, stream: Any, place: ServedPlace) -> None:
        self._stream, self._place = stream, place
        # Not the stream: it would be kept alive.
        weakref.finalize(self, place.ended).atexit = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _SyncPlacedStream(_PlacedStream):
    """Such a stream for threads."""

    def __enter__(self) -> _SyncPlacedStream:
        self._stream.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._place.ended()
        self._stream.__exit__(*error)

    def __iter__(self) -> _SyncPlacedStream:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._stream)
        except StopIteration:
            self._place.ended()
            raise
        except BaseException as error:
            self._place.failed(error)
            raise

    def close(self) -> None:
        self._place.ended()
        self._stream.close()


class _AsyncPlacedStream(_PlacedStream):
    """Such a stream for a loop."""

    async def __aenter__(self) -> _AsyncPlacedStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._place.ended()
        await self._stream.__aexit__(*error)

    def __aiter__(self) -> _AsyncPlacedStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self._stream)
        except StopAsyncIteration:
            self._place.ended()
            raise
        except BaseException as error:
            self._place.failed(error)
            raise

    async def close(self) -> None:
        self._place.ended()
        await self._stream.close()

"""Resources of the openai package whose calls tell a server of the retrieved texts of prompts."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial, wraps
from typing import Any

from rag_accel.engine_api import Message
from rag_accel.recognition.served_models import (
    AskServed,
    ServedPlace,
    ServedPrompt,
    ServedReports,
    TextsOfPrompt,
)
from rag_accel_adapters.libraries.openai_limited import ending_in_time
from rag_accel_adapters.libraries.openai_places import (
    arguments_at,
    client_at,
    held,
    may_be_sent_elsewhere,
    resource_at,
)

#: Most seconds of the one question to a server what it is.
_MODELS_S = 5.0
#: Fields by which a program itself decides what of a prompt is reused.
_OWN_FIELDS = ("cache_salt", "kv_transfer_params")
#: Methods of a resource that send a prompt; the second one reads the answer by a schema.
_SENDING = ("create", "parse")
_ROLES = frozenset({"assistant", "developer", "system", "tool", "user"})


def is_openai_resource(resource: Any) -> bool:
    """Tell whether an object is a resource of the openai package that sends prompts."""
    cls = type(resource)
    return cls.__module__.startswith("openai.resources.") and hasattr(resource, "_client")


def telling_resource(
    resource: Any, get_client: Callable[[], Any], ask: AskServed, reports: ServedReports
) -> Any:
    """Return a resource whose completions tell its server of texts; all else is as it was.

    Args:
        resource: of chat completions or of completions, for threads or for a loop.
        get_client: returns a client for threads of the same server, which asks what it is.
        ask: returns the texts of a prompt.
        reports: takes what answers say.
    """
    other = copy.copy(resource)
    for name in ("with_raw_response", "with_streaming_response"):
        vars(other).pop(name, None)  # made once, of the other's methods
    base_url = str(resource._client.base_url)

    def prompt_of(kwargs: Mapping[str, Any]) -> ServedPrompt | None:
        messages = _messages(kwargs)
        if messages is None or _decides_itself(kwargs):
            return None
        return ServedPrompt(base_url, messages, lambda: _models(get_client()))

    def tell(method: str, *args: Any, **kwargs: Any) -> Any:
        prompt = None if args else prompt_of(kwargs)
        if prompt is None:
            return getattr(resource, method)(*args, **kwargs)
        place = _place(resource, ask, prompt, kwargs)
        while True:
            target = resource if place is None else _resource_at(resource, place, ask)
            there = prompt if place is None else _prompt_at(prompt, place, get_client)
            try:
                texts = ask.texts_of(there)
                answer = getattr(target, method)(**_kwargs_at(resource, kwargs, place, texts))
            except BaseException as error:
                place = _next(place, error)
                if place is None:
                    raise
            else:
                return held(answer if texts is None else _read(answer, texts, reports), place)

    async def atell(method: str, *args: Any, **kwargs: Any) -> Any:
        prompt = None if args else prompt_of(kwargs)
        if prompt is None:
            return await getattr(resource, method)(*args, **kwargs)
        place = _place(resource, ask, prompt, kwargs)
        while True:
            target = resource if place is None else _resource_at(resource, place, ask)
            there = prompt if place is None else _prompt_at(prompt, place, get_client)
            try:
                texts = await ask.atexts_of(there)
                answer = await getattr(target, method)(**_kwargs_at(resource, kwargs, place, texts))
            except BaseException as error:
                place = _next(place, error)
                if place is None:
                    raise
            else:
                return held(answer if texts is None else _read(answer, texts, reports), place)

    telling = atell if type(resource).__name__.startswith("Async") else tell
    for name in _SENDING:
        if (send := getattr(resource, name, None)) is not None:
            vars(other)[name] = wraps(send)(partial(telling, name))
    vars(other)["reports"] = reports
    return other


class TellingClient:
    """A client whose completions tell its server of texts; all else is the client's own.

    Args:
        get: returns the client, made with the first call.
        get_client: returns one for threads of the same server.
        ask: returns the texts of a prompt.
        reports: takes what answers say.
    """

    def __init__(
        self,
        get: Callable[[], Any],
        get_client: Callable[[], Any],
        ask: AskServed,
        reports: ServedReports,
    ) -> None:
        self._get, self._get_client, self._ask, self.reports = get, get_client, ask, reports

    def __getattr__(self, name: str) -> Any:
        return getattr(self._get(), name)

    @property
    def chat(self) -> Any:
        """Return the client's chat, whose completions are telling ones."""
        chat = copy.copy(self._get().chat)
        vars(chat)["completions"] = self._telling(chat.completions)
        return chat

    @property
    def completions(self) -> Any:
        return self._telling(self._get().completions)

    def _telling(self, resource: Any) -> Any:
        if not is_openai_resource(resource):
            return resource
        return telling_resource(resource, self._get_client, self._ask, self.reports)


def _place(
    resource: Any, ask: AskServed, prompt: ServedPrompt, kwargs: Mapping[str, Any]
) -> ServedPlace | None:
    """Return the server of a call; None where only the program's own may be sent it."""
    return ask.place_of(prompt, kwargs.get("model")) if may_be_sent_elsewhere(resource) else None


def _resource_at(resource: Any, place: ServedPlace, ask: AskServed) -> Any:
    """Return a resource that asks a server, by the deadline of its request."""
    found, gate = resource_at(resource, place), ask.gate()
    return found if gate is None else ending_in_time(found, gate)


def _prompt_at(
    prompt: ServedPrompt, place: ServedPlace, get_client: Callable[[], Any]
) -> ServedPrompt:
    """Return a prompt for a server, which is asked what it is as it will be sent it."""
    return replace(
        prompt,
        base_url=place.base_url,
        get_models=lambda: _models(client_at(get_client(), place)),
    )


def _kwargs_at(
    resource: Any,
    kwargs: Mapping[str, Any],
    place: ServedPlace | None,
    texts: TextsOfPrompt | None,
) -> dict[str, Any]:
    sent = dict(kwargs) if texts is None else _with_fields(kwargs, texts)
    return sent if place is None else arguments_at(resource._client, place, sent)


def _next(place: ServedPlace | None, error: BaseException) -> ServedPlace | None:
    """Return the server to try after an error; None where it is the caller's."""
    return None if place is None else place.another(error)


def _models(client: Any) -> Any:
    options = {"timeout": _MODELS_S, "max_retries": 0, "follow_redirects": False}
    return client.get("/models", cast_to=object, options=options)


def _decides_itself(kwargs: Mapping[str, Any]) -> bool:
    body = kwargs.get("extra_body")
    if body is not None and not isinstance(body, Mapping):
        return True
    return any(name in kwargs or (body is not None and name in body) for name in _OWN_FIELDS)


def _with_fields(kwargs: Mapping[str, Any], texts: TextsOfPrompt) -> dict[str, Any]:
    return {**kwargs, "extra_body": {**(kwargs.get("extra_body") or {}), **texts.fields}}


def _messages(kwargs: Mapping[str, Any]) -> tuple[Message, ...] | None:
    """Return the messages of a call; None of several prompts, or of what is no text."""
    if "prompt" in kwargs:
        prompt = kwargs["prompt"]
        if isinstance(prompt, list) and len(prompt) == 1:
            prompt = prompt[0]
        return (Message("user", prompt),) if isinstance(prompt, str) else None
    turns = kwargs.get("messages")
    if not isinstance(turns, Sequence) or isinstance(turns, str):
        return None
    messages = tuple(_message(turn) for turn in turns)
    found = tuple(message for message in messages if message is not None)
    return found if found and len(found) == len(messages) else None


def _message(turn: Any) -> Message | None:
    if not isinstance(turn, Mapping) or turn.get("role") not in _ROLES:
        return None
    content = turn.get("content")
    if content is None:
        content = ""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        texts = [part for part in parts if isinstance(part, str)]
        content = "\n".join(texts) if len(texts) == len(content) else None
    return Message(turn["role"], content) if isinstance(content, str) else None


def _read(answer: Any, texts: TextsOfPrompt, reports: ServedReports) -> Any:
    """Return an answer whose report is put where it is known."""
    if hasattr(answer, "__aiter__"):
        return _AsyncTellingStream(answer, texts, reports)
    if hasattr(answer, "__next__"):
        return _TellingStream(answer, texts, reports)
    whole = answer
    if not hasattr(answer, "choices"):
        parse = getattr(answer, "parse", None)  # of a raw response, which keeps what it has parsed
        with suppress(Exception):  # the caller meets it, too
            whole = parse() if callable(parse) else None
    if hasattr(whole, "choices"):
        params = getattr(whole, "kv_transfer_params", None)
        reports.put(texts.report(params, _cached_tokens(whole)))
    return answer


def _cached_tokens(answer: Any) -> int | None:
    details = getattr(getattr(answer, "usage", None), "prompt_tokens_details", None)
    cached = getattr(details, "cached_tokens", None)
    return cached if type(cached) is int else None


class _Telling:
    """A stream of the openai package that puts reports as its events pass."""

    def __init__(self, stream: Any, texts: TextsOfPrompt, reports: ServedReports) -> None:
        self._stream, self._texts, self._reports = stream, texts, reports
        self._is_begun = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _note(self, event: Any) -> Any:
        if not self._is_begun:
            self._is_begun = True
            self._reports.put(self._texts.streamed(None))
        cached = _cached_tokens(event)
        if cached is not None and not getattr(event, "choices", None):
            self._reports.put(self._texts.streamed(cached))
        return event


class _TellingStream(_Telling):
    """Such a stream for threads."""

    def __enter__(self) -> _TellingStream:
        self._stream.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.__exit__(*error)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._note(next(self._stream))


class _AsyncTellingStream(_Telling):
    """Such a stream for a loop."""

    async def __aenter__(self) -> _AsyncTellingStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stream.__aexit__(*error)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        return self._note(await anext(self._stream))

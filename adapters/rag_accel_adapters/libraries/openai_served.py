"""Resources of the openai package whose calls tell servers of retrieved texts, or go to others.

A call may go to another server of the same model than the one that the program's client asks.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any

from rag_accel.adoption.served_models import (
    PromptTexts,
    Reports,
    ServedPlace,
    ServedPrompt,
    ServerHooks,
)
from rag_accel.engine_api import Message
from rag_accel_adapters.libraries.openai_limited import ending_in_time

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
    resource: Any, get_client: Callable[[], Any], hooks: ServerHooks, reports: Reports
) -> Any:
    """Return a resource whose completions tell its server of texts; all else is as it was.

    Args:
        resource: of chat completions or of completions, for threads or for a loop.
        get_client: returns a client for threads of the same server, which asks what it is.
        hooks: choose the server of a prompt and its texts.
        reports: takes what answers say.
    """
    other = copy.copy(resource)
    for name in ("with_raw_response", "with_streaming_response"):
        vars(other).pop(name, None)  # made once, of the other's methods

    def tell(method: str, *args: Any, **kwargs: Any) -> Any:
        prompt = None if args else _prompt(resource, get_client, kwargs)
        if prompt is None:
            return getattr(resource, method)(*args, **kwargs)
        for attempt in _attempts(resource, get_client, hooks, prompt, kwargs):
            with attempt:
                texts = hooks.annotate(attempt.prompt)
                answer = getattr(attempt.resource, method)(**attempt.arguments(texts))
                return attempt.answered(answer, texts, reports)
        raise AssertionError("the last attempt ends by an answer or by its error")

    async def atell(method: str, *args: Any, **kwargs: Any) -> Any:
        prompt = None if args else _prompt(resource, get_client, kwargs)
        if prompt is None:
            return await getattr(resource, method)(*args, **kwargs)
        for attempt in _attempts(resource, get_client, hooks, prompt, kwargs):
            with attempt:
                texts = await hooks.aannotate(attempt.prompt)
                answer = await getattr(attempt.resource, method)(**attempt.arguments(texts))
                return attempt.answered(answer, texts, reports)
        raise AssertionError("the last attempt ends by an answer or by its error")

    telling = atell if type(resource).__name__.startswith("Async") else tell
    for name in _SENDING:
        if (send := getattr(resource, name, None)) is not None:
            vars(other)[name] = wraps(send)(partial(telling, name))
    vars(other)["reports"] = reports
    return other


@dataclass(slots=True)
class _Attempt:
    """A call at one server; a block of it takes an error that another server may make good.

    Args:
        resource: sends the call.
        kwargs: of the call.
        prompt: as that server is sent it.
        place: the server; None for the program's own alone.
    """

    resource: Any
    kwargs: Mapping[str, Any]
    prompt: ServedPrompt
    place: ServedPlace | None
    #: the server to ask after an error
    next_place: ServedPlace | None = None

    def arguments(self, texts: PromptTexts | None) -> dict[str, Any]:
        sent = dict(self.kwargs) if texts is None else _with_fields(self.kwargs, texts)
        return sent if self.place is None else arguments_at(self.resource._client, self.place, sent)

    def answered(self, answer: Any, texts: PromptTexts | None, reports: Reports) -> Any:
        return _read(answer, texts, reports, self.place)

    def __enter__(self) -> None:
        pass

    def __exit__(self, cls: object, error: BaseException | None, *trace: object) -> bool:
        if error is not None and self.place is not None:
            self.next_place = self.place.another(error)
        return self.next_place is not None


def _attempts(
    resource: Any,
    get_client: Callable[[], Any],
    hooks: ServerHooks,
    prompt: ServedPrompt,
    kwargs: Mapping[str, Any],
) -> Iterator[_Attempt]:
    """Yield a call at one server after another, each after the error of the one before."""
    # Only the program's own may be sent it where the client has an ``auth`` of its own.
    may_leave = may_be_sent_elsewhere(resource)
    place = hooks.route(prompt, kwargs.get("model")) if may_leave else None
    if place is None:
        yield _Attempt(resource, kwargs, prompt, None)
    while place is not None:
        there = resource_at(resource, place)
        if (gate := hooks.gate()) is not None:
            there = ending_in_time(there, gate)
        # It is asked what it is as it will be sent the prompt.
        models = partial(_models_at, get_client, place)
        asked = replace(prompt, base_url=place.base_url, get_models=models)
        attempt = _Attempt(there, kwargs, asked, place)
        yield attempt
        place = attempt.next_place


class TellingClient:
    """A client whose completions tell its server of texts; all else is the client's own.

    Args:
        get: returns the client, made with the first call.
        get_client: returns one for threads of the same server.
        hooks: choose the server of a prompt and its texts.
        reports: takes what answers say.
    """

    def __init__(
        self,
        get: Callable[[], Any],
        get_client: Callable[[], Any],
        hooks: ServerHooks,
        reports: Reports,
    ) -> None:
        self._get, self._get_client, self._hooks, self.reports = get, get_client, hooks, reports

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
        return telling_resource(resource, self._get_client, self._hooks, self.reports)


def _prompt(
    resource: Any, get_client: Callable[[], Any], kwargs: Mapping[str, Any]
) -> ServedPrompt | None:
    """Return the prompt of a call; None where the call is sent as it is."""
    messages = _messages(kwargs)
    if messages is None or _decides_itself(kwargs):
        return None
    base_url = str(resource._client.base_url)
    return ServedPrompt(base_url, messages, lambda: _models(get_client()))


def _models_at(get_client: Callable[[], Any], place: ServedPlace) -> Any:
    return _models(client_at(get_client(), place))


def _models(client: Any) -> Any:
    options = {"timeout": _MODELS_S, "max_retries": 0, "follow_redirects": False}
    return client.get("/models", cast_to=object, options=options)


def _decides_itself(kwargs: Mapping[str, Any]) -> bool:
    body = kwargs.get("extra_body")
    if body is not None and not isinstance(body, Mapping):
        return True
    return any(name in kwargs or (body is not None and name in body) for name in _OWN_FIELDS)


def _with_fields(kwargs: Mapping[str, Any], texts: PromptTexts) -> dict[str, Any]:
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


def _read(
    answer: Any, texts: PromptTexts | None, reports: Reports, place: ServedPlace | None
) -> Any:
    """Return an answer that puts its report where it is known, and gives its place back."""
    if hasattr(answer, "__aiter__") or hasattr(answer, "__next__"):
        if texts is None and place is None:
            return answer
        stream = _AsyncReadStream if hasattr(answer, "__aiter__") else _SyncReadStream
        return stream(answer, texts, reports, place)
    if texts is not None:
        whole = answer
        if not hasattr(answer, "choices"):
            parse = getattr(answer, "parse", None)  # of a raw response, which keeps what it parsed
            with suppress(Exception):  # the caller meets it, too
                whole = parse() if callable(parse) else None
        if hasattr(whole, "choices"):
            params = getattr(whole, "kv_transfer_params", None)
            report = texts.report(params, _cached_tokens(whole))
            if report is not None:
                reports.append(report)
    if place is not None:
        place.ended()
    return answer


def _cached_tokens(answer: Any) -> int | None:
    details = getattr(getattr(answer, "usage", None), "prompt_tokens_details", None)
    cached = getattr(details, "cached_tokens", None)
    return cached if type(cached) is int else None


class _ReadStream:
    """A stream of the openai package that puts reports as its events pass.

    Its place is given back at its end, or when it goes.
    """

    def __init__(
        self, stream: Any, texts: PromptTexts | None, reports: Reports, place: ServedPlace | None
    ) -> None:
        self._stream, self._texts, self._reports, self._place = stream, texts, reports, place
        self._is_begun = False
        if place is not None:  # not the stream: it would be kept alive
            weakref.finalize(self, place.ended).atexit = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _note(self, event: Any) -> Any:
        if self._texts is not None:
            if not self._is_begun:
                self._is_begun = True
                self._reports.append(self._texts.streamed(None))
            cached = _cached_tokens(event)
            if cached is not None and not getattr(event, "choices", None):
                self._reports.append(self._texts.streamed(cached))
        return event

    def _end(self) -> None:
        if self._place is not None:
            self._place.ended()

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, StopIteration | StopAsyncIteration):
            self._end()
        elif self._place is not None:
            self._place.failed(error)


class _SyncReadStream(_ReadStream):
    """Such a stream for threads."""

    def __enter__(self) -> _SyncReadStream:
        self._stream.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._end()
        self._stream.__exit__(*error)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return self._note(next(self._stream))
        except BaseException as error:
            self._fail(error)
            raise

    def close(self) -> None:
        self._end()
        self._stream.close()


class _AsyncReadStream(_ReadStream):
    """Such a stream for a loop."""

    async def __aenter__(self) -> _AsyncReadStream:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._end()
        await self._stream.__aexit__(*error)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        try:
            return self._note(await anext(self._stream))
        except BaseException as error:
            self._fail(error)
            raise

    async def close(self) -> None:
        self._end()
        await self._stream.close()

"""One chat completion of an OpenAI-compatible server, through the ``openai`` client."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rag_accel.engine_api import GenerationOutput
from rag_accel.engines.llm.remote.completions import (
    CompletionFault,
    StreamAssembler,
    parse_completion,
)
from rag_accel.engines.llm.remote.errors import ErrorWriter, Secret
from rag_accel.engines.llm.remote.options import RemoteOptions
from rag_accel.errors import RemoteEngineError

if TYPE_CHECKING:
    import httpx2
    from openai import APIConnectionError, AsyncOpenAI, AsyncStream

Emit = Callable[[str], None]

_PATH = "/chat/completions"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0
_BODY_HINT = "check that base_url is an OpenAI-compatible server"
_BREAK_HINT = "look at the server's log; a proxy may end long answers"


@dataclass(frozen=True, slots=True)
class ChatCall:
    """One request: its JSON body and whether the answer is streamed."""

    body: bytes
    stream: bool


class ChatClient:
    """A client of ``<base_url>/chat/completions``, for use on one event loop only.

    The openai client sends them, repeats what is worth repeating and reads streams; only a stream
    that breaks before its first text is asked for again here.
    """

    def __init__(
        self,
        base_url: str,
        secret: Secret | None,
        options: RemoteOptions,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.endpoint = base_url + _PATH
        self._options = options
        self._errors = ErrorWriter(self.endpoint, secret)
        self._openai = _open_client(base_url, secret, options, transport)
        self._headers = _omitted(secret)

    async def complete(self, call: ChatCall, emit: Emit) -> GenerationOutput:
        """Return the completion; ``emit`` gets the text increments of a streamed one.

        Raises RemoteEngineError when the answer is final and bad, after the last attempt, or when
        the total time is over. After the first increment nothing is repeated.
        """
        limit = asyncio.timeout(self._options.total_timeout_s)
        try:
            async with limit:
                outcome = await self._outcome(call, emit)
        except TimeoutError:
            if not limit.expired():
                raise
            outcome = self._too_slow()
        if isinstance(outcome, GenerationOutput):
            return outcome
        raise outcome  # only here, where it gets no context

    async def aclose(self) -> None:
        """Close all connections."""
        await self._openai.close()

    def describe(self, error: BaseException) -> RemoteEngineError:
        """Return an error of ours for one that was not foreseen."""
        text = f"{type(error).__name__}: {error}"
        return self._errors.fault("the HTTP client failed", text, "report this as a bug")

    async def _outcome(self, call: ChatCall, emit: Emit) -> GenerationOutput | RemoteEngineError:
        from openai import APIConnectionError, APIStatusError

        from rag_accel.engines.llm.remote.http import HttpFault

        try:
            return await (self._stream(call, emit) if call.stream else self._whole(call))
        except HttpFault as exc:
            return self._errors.fault(*exc.parts)
        except APIStatusError as exc:
            response = exc.response
            error = self._errors.status(response.status_code, response.content)
            return _with_attempts(error, exc.request)
        except APIConnectionError as exc:
            return _with_attempts(self._no_connection(exc), exc.request)

    async def _whole(self, call: ChatCall) -> GenerationOutput | RemoteEngineError:
        import httpx2

        response = await self._openai.post(
            _PATH,
            cast_to=httpx2.Response,
            content=call.body,
            options={"headers": self._headers},
        )
        return self._checked(parse_completion(response.content))

    async def _stream(self, call: ChatCall, emit: Emit) -> GenerationOutput | RemoteEngineError:
        import anyio

        attempts_left = self._options.max_retries + 1
        while True:
            stream, answer = await self._open_stream(call, attempts_left - 1), StreamAssembler()
            attempts_left -= 1 + _num_retries(stream.response.request)
            async with stream:
                outcome = await self._read(stream, answer, emit)
            if not isinstance(outcome, _Broken):
                return outcome
            if answer.has_text or attempts_left < 1:
                what = "the connection broke before the answer was complete"
                return self._errors.fault(what, outcome.text, _BREAK_HINT)
            await anyio.sleep(self._pause_s(attempts_left))

    async def _open_stream(self, call: ChatCall, max_retries: int) -> AsyncStream[object]:
        from openai import AsyncStream

        return await self._openai.post(
            _PATH,
            cast_to=object,
            content=call.body,
            stream=True,
            stream_cls=AsyncStream[object],
            options={"headers": self._headers, "max_retries": max_retries},
        )

    async def _read(
        self, stream: AsyncStream[object], answer: StreamAssembler, emit: Emit
    ) -> GenerationOutput | RemoteEngineError | _Broken:
        from openai import APIConnectionError, APIError

        body = stream.response.extensions["body"]
        end = "end of stream"
        try:
            async for event in stream:
                body.forget_head()
                delta = answer.add(event)
                if isinstance(delta, CompletionFault):
                    return self._bad_answer(delta)
                if delta:
                    emit(delta)
        except APIConnectionError as exc:
            end = _cause(exc)
        except APIError as exc:
            return self._bad_answer(CompletionFault("the stream reports an error", str(exc.body)))
        except (ValueError, RecursionError) as exc:
            if not body.head:
                fault = CompletionFault("an event is not a chat chunk", _document(exc))
                return self._bad_answer(fault)
        # After the finish reason only counts could still have come.
        if answer.is_complete or body.has_end_mark:
            return answer.output()
        return self._take_whole(bytes(body.head), emit) if body.head else _Broken(end)

    def _take_whole(self, body: bytes, emit: Emit) -> GenerationOutput | RemoteEngineError:
        """Take what came instead of a stream: it ended properly, and asking again costs again."""
        output = self._checked(parse_completion(body))
        if isinstance(output, GenerationOutput) and output.text:
            emit(output.text)
        return output

    def _pause_s(self, attempts_left: int) -> float:
        num_done = self._options.max_retries - attempts_left
        longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**num_done)
        return longest * random.uniform(0.75, 1.0)

    def _checked(
        self, answer: GenerationOutput | CompletionFault
    ) -> GenerationOutput | RemoteEngineError:
        return answer if isinstance(answer, GenerationOutput) else self._bad_answer(answer)

    def _bad_answer(self, fault: CompletionFault) -> RemoteEngineError:
        return self._errors.fault(fault.what, fault.text, _BODY_HINT)

    def _no_connection(self, error: APIConnectionError) -> RemoteEngineError:
        import httpx2

        if isinstance(error.__cause__, (httpx2.ConnectError, httpx2.ConnectTimeout)):
            hint = "check base_url and that the server runs"
            return self._errors.fault("no connection to the server", _cause(error), hint)
        what = "the connection broke before the answer was complete"
        return self._errors.fault(what, _cause(error), _BREAK_HINT)

    def _too_slow(self) -> RemoteEngineError:
        found = f"no end of it after {self._options.total_timeout_s:g} s"
        hint = "raise RemoteOptions.total_timeout_s, or ask for fewer tokens"
        return self._errors.fault("the call took longer than it may", found, hint)


@dataclass(frozen=True, slots=True)
class _Broken:
    """How a stream ended that was not over."""

    text: str


def _open_client(
    base_url: str,
    secret: Secret | None,
    options: RemoteOptions,
    transport: httpx2.AsyncBaseTransport | None,
) -> AsyncOpenAI:
    try:
        from openai import AsyncOpenAI

        from rag_accel.engines.llm.remote.http import BoundedHttpClient
    except ImportError as exc:
        raise ImportError(
            "OpenAICompatibleEngine needs openai: pip install 'rag-accel[openai]'"
        ) from exc
    http = BoundedHttpClient(options, transport)
    return AsyncOpenAI(
        api_key=secret.reveal() if secret else "none",
        base_url=base_url,
        max_retries=options.max_retries,
        http_client=http,
        timeout=http.timeout,
    )


def _omitted(secret: Secret | None) -> dict[str, Any]:
    """Return what is not given here and not taken from the environment: it is another server's."""
    from openai import Omit

    names = ["OpenAI-Organization", "OpenAI-Project", *([] if secret else ["Authorization"])]
    return dict.fromkeys(names, Omit())


def _num_retries(request: httpx2.Request) -> int:
    """Return how often the openai client has repeated this request, which it writes into it."""
    return int(request.headers.get("x-stainless-retry-count", 0))


def _with_attempts(error: RemoteEngineError, request: httpx2.Request) -> RemoteEngineError:
    if num_retries := _num_retries(request):
        error.found = f"{error.found} (attempt {num_retries + 1})"
    return error


def _cause(error: APIConnectionError) -> str:
    cause = error.__cause__ or error
    return f"{type(cause).__name__}: {cause}"


def _document(error: Exception) -> str:
    """Return the text that was not JSON, or not text."""
    return str(getattr(error, "doc", None) or getattr(error, "object", None) or error)

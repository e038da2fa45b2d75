"""One chat completion of an OpenAI-compatible server, through the ``openai`` client."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from rag_accel.engine_api import GenerationOutput
from rag_accel.engines.http.errors import ErrorWriter, Secret
from rag_accel.engines.http.openai_client import (
    BREAK_HINT,
    cause_of,
    count_retries,
    failure,
    omitted_headers,
    open_client,
)
from rag_accel.engines.http.options import RemoteOptions
from rag_accel.engines.llm.remote.completions import (
    CompletionFault,
    StreamAssembler,
    parse_completion,
    parse_prompt,
)
from rag_accel.engines.llm.remote.servers import PROBE_S
from rag_accel.errors import RemoteEngineError

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncStream

Emit = Callable[[str], None]
AnswerT = TypeVar("AnswerT")

_PATH = "/chat/completions"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0


@dataclass(frozen=True, slots=True)
class ChatCall:
    """One request.

    Args:
        body: as JSON.
        stream: whether the answer is streamed.
        is_repeated: whether it is sent again where that may help.
        only_prompt: whether only the use of its prompt is read off the answer.
    """

    body: bytes
    stream: bool
    is_repeated: bool = True
    only_prompt: bool = False


class ChatClient:
    """A client of ``<base_url>/chat/completions``, for use on one event loop only.

    The openai client sends them, repeats what is worth repeating and reads streams; only a stream
    that breaks before its first text is repeated here.
    """

    def __init__(
        self,
        base_url: str,
        secret: Secret | None,
        options: RemoteOptions,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        on_refusal: Callable[[], object] | None = None,
    ) -> None:
        self.base_url, self.endpoint = base_url, base_url + _PATH
        self._options = options
        self._errors = ErrorWriter(self.endpoint, secret)
        self._openai = open_client(
            base_url, secret, options, transport, "OpenAICompatibleEngine", on_refusal
        )
        self._headers = omitted_headers(secret)

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

    async def models(self) -> object:
        """Return the JSON value of ``/models``, without following it elsewhere; None if refused."""
        return await self._get("/models", object)

    async def metrics(self) -> str | None:
        """Return the text of the server's ``/metrics``; None where there is none."""
        import httpx2

        root = self.base_url.removesuffix("/v1")
        answer = await self._get(f"{root}/metrics", httpx2.Response)
        return None if answer is None else answer.text

    async def _get(self, path: str, cast_to: type[AnswerT]) -> AnswerT | None:
        try:
            async with asyncio.timeout(PROBE_S):
                return await self._openai.get(
                    path,
                    cast_to=cast_to,
                    options={
                        "headers": self._headers,
                        "max_retries": 0,
                        "follow_redirects": False,
                    },
                )
        except Exception:  # without it, the server is sent what any other is
            return None

    async def aclose(self) -> None:
        await self._openai.close()

    def describe(self, error: BaseException) -> RemoteEngineError:
        text = f"{type(error).__name__}: {error}"
        return self._errors.fault("the HTTP client failed", text, "report this as a bug")

    async def _outcome(self, call: ChatCall, emit: Emit) -> GenerationOutput | RemoteEngineError:
        try:
            return await (self._stream(call, emit) if call.stream else self._whole(call))
        except Exception as exc:
            found = failure(exc, self._errors)
            if found is None:
                raise
            return found

    async def _whole(self, call: ChatCall) -> GenerationOutput | RemoteEngineError:
        import httpx2

        response = await self._openai.post(
            _PATH,
            cast_to=httpx2.Response,
            content=call.body,
            options={"headers": self._headers, "max_retries": self._max_retries(call)},
        )
        parse = parse_prompt if call.only_prompt else parse_completion
        return self._checked(parse(response.content))

    async def _stream(self, call: ChatCall, emit: Emit) -> GenerationOutput | RemoteEngineError:
        import anyio

        attempts_left = self._max_retries(call) + 1
        while True:
            stream, answer = await self._open_stream(call, attempts_left - 1), StreamAssembler()
            attempts_left -= 1 + count_retries(stream.response.request)
            async with stream:
                outcome = await self._read(stream, answer, emit)
            if not isinstance(outcome, _Broken):
                self._openai.budget.earn()
                return outcome
            if answer.has_text or attempts_left < 1 or not self._openai.budget.spend():
                what = "the connection broke before the answer was complete"
                return self._errors.fault(what, outcome.text, BREAK_HINT)
            await anyio.sleep(self._pause_s(attempts_left))

    def _max_retries(self, call: ChatCall) -> int:
        return self._options.max_retries if call.is_repeated else 0

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
        import httpx2
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
        except (APIConnectionError, httpx2.RequestError) as exc:  # openai 2 wraps none here
            end = cause_of(exc)
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
        """Take a whole answer instead of a stream: it is complete, and a retry would cost again."""
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
        return self._errors.fault(fault.what, fault.text, fault.hint)

    def _too_slow(self) -> RemoteEngineError:
        found = f"no end of it after {self._options.total_timeout_s:g} s"
        hint = "raise RemoteOptions.total_timeout_s, or ask for fewer tokens"
        return self._errors.fault("the call took longer than it may", found, hint)


@dataclass(frozen=True, slots=True)
class _Broken:
    """The end of a stream that broke off."""

    text: str


def _document(error: Exception) -> str:
    """Return the text that was not JSON, or not text."""
    return str(getattr(error, "doc", None) or getattr(error, "object", None) or error)

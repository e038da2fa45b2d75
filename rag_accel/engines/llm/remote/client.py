"""Get one chat completion from an OpenAI-compatible server, repeating attempts worth repeating."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING

from rag_accel.engine_api import GenerationOutput
from rag_accel.engines.llm.remote.errors import ErrorWriter, Secret
from rag_accel.engines.llm.remote.options import RemoteOptions, parse_retry_after
from rag_accel.engines.llm.remote.wire import (
    SseDecoder,
    StreamAssembler,
    WireFault,
    parse_completion,
)
from rag_accel.errors import RemoteEngineError

if TYPE_CHECKING:
    import httpx2

Sleep = Callable[[float], Awaitable[None]]
Emit = Callable[[str], None]

_END_WAIT_S = 0.1
_EXCERPT_BYTES = 64 * 1024
_BODY_HINT = "check that base_url is an OpenAI-compatible server"
_BREAK_HINT = "look at the server's log; a proxy may end long answers"


@dataclass(frozen=True, slots=True)
class ChatCall:
    """Hold one request: its JSON body and whether the answer is streamed."""

    body: bytes
    stream: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """Hold what went wrong in one attempt."""

    error: RemoteEngineError
    is_retryable: bool = False
    retry_after_s: float | None = None


class ChatClient:
    """Send requests to ``<base_url>/chat/completions``; use on one event loop only."""

    def __init__(
        self,
        base_url: str,
        secret: Secret | None,
        options: RemoteOptions,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.endpoint = f"{base_url}/chat/completions"
        self._options = options
        self._errors = ErrorWriter(self.endpoint, secret)
        self._jitter = random.Random(options.retry.seed)
        self._sleep = sleep
        self._http = _open_http(secret, options, transport)

    async def complete(self, call: ChatCall, emit: Emit) -> GenerationOutput:
        """Return the completion; ``emit`` gets the text increments of a streamed one.

        Raises RemoteEngineError when the answer is final and bad, after the last attempt, or when
        the total time is over. After the first increment nothing is repeated.
        """
        limit = asyncio.timeout(self._options.total_timeout_s)
        try:
            async with limit:
                return await self._repeat(call, emit, limit)
        except TimeoutError:
            if not limit.expired():
                raise
        raise self._too_slow()  # only here, where it gets no context

    async def _repeat(self, call: ChatCall, emit: Emit, limit: asyncio.Timeout) -> GenerationOutput:
        attempt = 0
        while True:
            attempt += 1
            outcome = await self._attempt(call, emit)
            if isinstance(outcome, GenerationOutput):
                return outcome
            pause_s = self._pause_s(attempt, outcome, limit)
            if pause_s is None:
                raise _with_attempts(outcome.error, attempt)
            await self._sleep(pause_s)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    def describe(self, error: BaseException) -> RemoteEngineError:
        """Return an error of ours for one that nobody foresaw."""
        text = f"{type(error).__name__}: {error}"
        return self._errors.fault("the HTTP client failed", text, "report this as a bug")

    def _pause_s(self, attempt: int, failure: Failure, limit: asyncio.Timeout) -> float | None:
        """Return the seconds until the next attempt; None if there shall be no other."""
        if not failure.is_retryable:
            return None
        pause_s = self._options.retry.pause_s(attempt, failure.retry_after_s, self._jitter)
        end, now = limit.when(), asyncio.get_running_loop().time()
        is_late = pause_s is not None and end is not None and now + pause_s >= end
        return None if is_late else pause_s

    async def _attempt(self, call: ChatCall, emit: Emit) -> GenerationOutput | Failure:
        import httpx2

        answer = StreamAssembler()
        try:
            async with self._http.stream("POST", self.endpoint, content=call.body) as response:
                if not response.is_success:
                    return await self._refusal(response)
                if call.stream:
                    return await self._read_stream(response, answer, emit)
                return await self._read_whole(response)
        except httpx2.HTTPError as exc:
            # After the finish reason only counts could still have come.
            return answer.output() if answer.is_complete else self._transport_failure(exc, answer)

    async def _refusal(self, response: httpx2.Response) -> Failure:
        status, body = response.status_code, await _read_excerpt(response)
        return Failure(
            self._errors.status(status, body),
            is_retryable=status == 429 or status >= 500,
            retry_after_s=parse_retry_after(response.headers),
        )

    async def _read_whole(self, response: httpx2.Response) -> GenerationOutput | Failure:
        body = await self._read_body(response)
        if body is None:
            return self._too_long()
        answer = parse_completion(body)
        return self._bad_answer(answer) if isinstance(answer, WireFault) else answer

    async def _read_body(self, response: httpx2.Response) -> bytes | None:
        """Return the whole body, or None if it is longer than allowed."""
        body = bytearray()
        async for chunk in response.aiter_bytes():
            if len(body) + len(chunk) > self._options.max_response_bytes:
                return None
            body += chunk
        return bytes(body)

    async def _read_stream(
        self, response: httpx2.Response, answer: StreamAssembler, emit: Emit
    ) -> GenerationOutput | Failure:
        decoder, no_events, num_bytes = SseDecoder(), bytearray(), 0
        chunks = response.aiter_bytes()
        async for chunk in chunks:
            num_bytes += len(chunk)
            if num_bytes > self._options.max_response_bytes:
                return self._too_long()
            if not answer.has_begun:
                no_events += chunk
            fault = _take_events(decoder.feed(chunk), answer, emit)
            if fault is not None:
                return self._bad_answer(fault)
            if answer.is_done:
                await _read_end(chunks)
                break
        if answer.is_complete:
            return answer.output()
        if no_events and not answer.has_begun:
            return self._take_whole(bytes(no_events), emit)
        return self._truncated(answer, "end of stream")

    def _take_whole(self, body: bytes, emit: Emit) -> GenerationOutput | Failure:
        """Take what came instead of a stream: it ended properly, and asking again costs again."""
        output = parse_completion(body)
        if isinstance(output, WireFault):
            return self._bad_answer(output)
        if output.text:
            emit(output.text)
        return output

    def _transport_failure(self, error: httpx2.HTTPError, answer: StreamAssembler) -> Failure:
        import httpx2

        text = f"{type(error).__name__}: {error}"
        if isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout)):
            hint = "check base_url and that the server runs"
            return Failure(self._errors.fault("no connection to the server", text, hint), True)
        if isinstance(error, httpx2.TimeoutException):
            hint = "raise RemoteOptions.read_timeout_s"
            return Failure(self._errors.fault("the server was silent for too long", text, hint))
        if isinstance(error, (httpx2.NetworkError, httpx2.RemoteProtocolError)):
            return self._truncated(answer, text)
        return Failure(self._errors.fault("the HTTP exchange failed", text, "check base_url"))

    def _too_slow(self) -> RemoteEngineError:
        found = f"no end of it after {self._options.total_timeout_s:g} s"
        hint = "raise RemoteOptions.total_timeout_s, or ask for fewer tokens"
        return self._errors.fault("the call took longer than it may", found, hint)

    def _truncated(self, answer: StreamAssembler, text: str) -> Failure:
        what = "the connection broke before the answer was complete"
        error = self._errors.fault(what, text, _BREAK_HINT)
        return Failure(error, is_retryable=not answer.has_text)

    def _bad_answer(self, fault: WireFault) -> Failure:
        return Failure(self._errors.fault(fault.what, fault.text, _BODY_HINT))

    def _too_long(self) -> Failure:
        limit = self._options.max_response_bytes
        hint = "lower max_tokens or raise RemoteOptions.max_response_bytes"
        return Failure(self._errors.fault("the answer is too long", f"> {limit} bytes", hint))


def _take_events(events: list[str], answer: StreamAssembler, emit: Emit) -> WireFault | None:
    for event in events:
        delta = answer.add(event)
        if isinstance(delta, WireFault):
            return delta
        if delta:
            emit(delta)
        if answer.is_done:
            break
    return None


async def _read_excerpt(response: httpx2.Response) -> bytes:
    """Read as much of a refusal as is worth showing; if it breaks off, what came of it."""
    import httpx2

    body = bytearray()
    with contextlib.suppress(httpx2.HTTPError):
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) >= _EXCERPT_BYTES:
                break
    return bytes(body)


async def _read_end(chunks: AsyncIterator[bytes]) -> None:
    """Read what follows the end mark, so that the connection can be used again."""
    import httpx2

    try:
        async with asyncio.timeout(_END_WAIT_S):
            async for _ in chunks:
                pass
    except (TimeoutError, httpx2.HTTPError):
        pass  # the answer is whole; only this connection is of no further use


def _open_http(
    secret: Secret | None, options: RemoteOptions, transport: httpx2.AsyncBaseTransport | None
) -> httpx2.AsyncClient:
    try:
        import httpx2
    except ImportError as exc:
        raise ImportError(
            "OpenAICompatibleEngine needs httpx2: pip install 'rag-accel[http]'"
        ) from exc
    headers = {"content-type": "application/json"}
    return httpx2.AsyncClient(
        headers=headers if secret is None else headers | _authorization(secret),
        timeout=httpx2.Timeout(
            options.read_timeout_s, connect=options.connect_timeout_s, pool=None
        ),
        limits=httpx2.Limits(
            max_connections=options.concurrency, max_keepalive_connections=options.concurrency
        ),
        # Cookies of one call would go with all others, and a server could add to them for ever.
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        transport=transport,
    )


def _authorization(secret: Secret) -> dict[str, str]:
    return {"authorization": f"Bearer {secret.reveal()}"}


def _with_attempts(error: RemoteEngineError, attempts: int) -> RemoteEngineError:
    if attempts > 1:
        error.found = f"{error.found} (attempt {attempts})"
    return error

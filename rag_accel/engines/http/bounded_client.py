"""An HTTP client with bounded answers that leaves final errors unrepeated, and others in bounds."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx2
from openai import APIConnectionError, AsyncOpenAI, OpenAIError

from rag_accel.engine_api.transient import RetryBudget
from rag_accel.engines.http.options import RemoteOptions
from rag_accel.telemetry.spans import trace_headers

_EXCERPT_BYTES = 64 * 1024
_END_MARK = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\]")
_END_MARK_BYTES = len(b"\ndata: [DONE]")
_END_S = 0.1
_ENCODED = ("content-encoding", "content-length", "transfer-encoding")


class HttpFault(OpenAIError):
    """An exchange is not worth repeating.

    An openai client repeats after errors of its HTTP package, openai 2 after any but openai's own.
    """

    def __init__(self, what: str, text: str, hint: str) -> None:
        super().__init__(what, text, hint)
        self.parts = (what, text, hint)


class BudgetedClient(AsyncOpenAI):
    """An openai client whose further attempts are bounded over all calls.

    Args:
        budget: of them.
        options: of the openai client.
    """

    def __init__(self, budget: RetryBudget, **options: Any) -> None:
        super().__init__(**options)
        self.budget = budget

    async def request(self, *args: Any, **options: Any) -> Any:
        """Send a request until it is answered; each whole answer allows a further attempt later."""
        answer = await super().request(*args, **options)
        if not options.get("stream"):
            self.budget.earn()
        return answer

    def _should_retry(self, response: httpx2.Response) -> bool:
        return super()._should_retry(response) and self.budget.spend()

    async def _sleep_for_retry(self, *, response: httpx2.Response | None, **how: Any) -> None:
        error = sys.exception()
        if response is None and isinstance(error, httpx2.RequestError) and not self.budget.spend():
            raise APIConnectionError(request=error.request) from error
        await super()._sleep_for_retry(response=response, **how)


class BoundedHttpClient(httpx2.AsyncClient):
    """An HTTP client whose answers have a ``Body`` of bounded size, in ``extensions["body"]``.

    Errors of httpx2 come through only where the connection was refused or broke; every
    other is an HttpFault.
    """

    def __init__(
        self,
        options: RemoteOptions,
        transport: httpx2.AsyncBaseTransport | None = None,
        on_refusal: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(
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
        self._max_bytes = options.max_response_bytes
        self._on_refusal = on_refusal

    async def send(
        self, request: httpx2.Request, *, stream: bool = False, **how: Any
    ) -> httpx2.Response:
        """Send a request and return its answer, read already unless it is a stream.

        Raises HttpFault, and ``httpx2.RequestError`` if there was or is no connection any more.
        """
        headers = trace_headers.get() or {}
        if not any(name in request.headers for name in headers):  # a tracer's own stay
            request.headers.update(headers)
        with _final_faults():
            encoded = await super().send(request, stream=True, **how)
        if self._on_refusal is not None and encoded.status_code in (429, 503):
            self._on_refusal()
        body = Body(encoded, self._max_bytes)
        headers = [pair for pair in encoded.headers.multi_items() if pair[0] not in _ENCODED]
        response = httpx2.Response(
            encoded.status_code,
            headers=headers,
            stream=body,
            request=request,
            extensions={**encoded.extensions, "body": body},
        )
        if not stream:
            body.forget_head()
            try:
                await response.aread()
            finally:  # also if this call is cancelled
                await response.aclose()
        return response


class Body(httpx2.AsyncByteStream):
    """The decoded body of an answer, which ends with an HttpFault where it becomes too long.

    Of a refusal it is as much as is worth showing; if it breaks off, what came of it.

    Attributes:
        head: what was read so far; None from ``forget_head`` on.
        has_end_mark: whether a stream of events said that it is over.
    """

    def __init__(self, response: httpx2.Response, max_bytes: int) -> None:
        self.head: bytearray | None = bytearray()
        self.has_end_mark = False
        self._tail = b""
        self._response = response
        self._chunks = response.aiter_bytes()  # one for all readers: a later one reads on
        self._left = max_bytes
        self._max_bytes = max_bytes

    def forget_head(self) -> None:
        """Keep no copy of what is read from here on."""
        self.head = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._response.is_success:
            with _final_faults():
                async for chunk in self._chunks:
                    yield self._checked(chunk)
            return
        left = _EXCERPT_BYTES
        try:
            async for chunk in self._chunks:
                yield chunk[:left]
                left -= len(chunk)
                if left <= 0:
                    return
        except httpx2.HTTPError:
            return

    def _checked(self, chunk: bytes) -> bytes:
        self._left -= len(chunk)
        if self._left < 0:
            hint = "lower max_tokens or raise RemoteOptions.max_response_bytes"
            raise HttpFault("the answer is too long", f"> {self._max_bytes} bytes", hint)
        if self.head is not None:
            self.head += chunk
        text = self._tail + chunk
        self.has_end_mark = self.has_end_mark or _END_MARK.search(text) is not None
        self._tail = text[-_END_MARK_BYTES:]
        return chunk

    async def aclose(self) -> None:
        """Give the connection back, or close it if something was left unread."""
        try:
            if self.has_end_mark:  # openai 2 leaves unread that nothing follows
                with suppress(HttpFault, TimeoutError, httpx2.HTTPError):
                    async with asyncio.timeout(_END_S):
                        async for chunk in self._chunks:
                            self._checked(chunk)
        finally:
            await self._response.aclose()


@contextmanager
def _final_faults() -> Iterator[None]:
    """Turn errors that another attempt would only repeat, or pay for again, into HttpFault."""
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout):
        raise
    except httpx2.TimeoutException as exc:
        hint = "raise RemoteOptions.read_timeout_s"
        raise HttpFault("the server was silent for too long", _text(exc), hint) from exc
    except (httpx2.NetworkError, httpx2.RemoteProtocolError):
        raise
    except httpx2.HTTPError as exc:
        raise HttpFault("the HTTP exchange failed", _text(exc), "check base_url") from exc
    except HttpFault:
        raise
    except Exception as exc:
        raise HttpFault("the HTTP client failed", _text(exc), "report this as a bug") from exc


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

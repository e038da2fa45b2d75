"""Server-sent events, with an error of the first one still a status of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.types import Send

DONE = b"data: [DONE]\n\n"
COMMENT_S = 10.0
"""Seconds without an event after which a chat's stream has a comment."""

_COMMENT = b": the answer is being made\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


def event(value: Any, name: str | None = None) -> bytes:
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


class EventStream:
    """The answer to one request as events.

    Args:
        send: sends to the client.
        headers: of the answer, besides those that all have.
        comment_s: after how many seconds without an event a comment follows, so that nobody on the
            way takes a long answer for a dead connection; None for never.
    """

    def __init__(
        self,
        send: Send,
        headers: Sequence[tuple[bytes, bytes]] = (),
        comment_s: float | None = None,
    ) -> None:
        self._send, self._headers, self._comment_s = send, [*_HEADERS, *headers], comment_s
        self._written = 0
        self._lock = asyncio.Lock()

    @property
    def has_begun(self) -> bool:
        """Tell whether the client was sent anything."""
        return self._written > 0

    async def run(self, events: AsyncIterator[bytes]) -> None:
        """Send all events, then ``[DONE]``; the answer begins with the first."""
        comments = asyncio.ensure_future(self._comment())
        try:
            closing: Any = events
            async with aclosing(closing):
                async for data in events:
                    await self._write(data)
        finally:
            comments.cancel()
            await asyncio.gather(comments, return_exceptions=True)
        await self._end()

    async def fail(self, data: bytes) -> None:
        """Send what went wrong as the last event."""
        await self._write(data)
        await self._end()

    async def _end(self) -> None:
        await self._write(DONE)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _comment(self) -> None:
        while self._comment_s is not None:
            before = self._written
            await asyncio.sleep(self._comment_s)
            if self._written == before:
                await self._write(_COMMENT)

    async def _write(self, data: bytes) -> None:
        async with self._lock:
            is_first = self._written == 0
            self._written += 1  # first, so that a cancelled write is not begun again
            if is_first:
                start = {"type": "http.response.start", "status": 200, "headers": self._headers}
                await self._send(start)
            await self._send({"type": "http.response.body", "body": data, "more_body": True})

"""Server-sent events, with an error of the first one still a status of its own."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.types import Send

DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


def event(value: Any, name: str | None = None) -> bytes:
    """Return a value as one event."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n"


class EventStream:
    """The answer to one request as events.

    Args:
        send: sends to the client.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def run(self, events: AsyncIterator[bytes]) -> None:
        """Send all events, then ``[DONE]``; the answer begins with the first."""
        closing: Any = events
        async with aclosing(closing):
            async for data in events:
                await self._write(data)
        await self._write(DONE)
        await self.end()

    async def fail(self, data: bytes) -> None:
        """Send what went wrong as the last event."""
        await self._write(data)
        await self._write(DONE)
        await self.end()

    async def end(self) -> None:
        """End the answer."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, data: bytes) -> None:
        if not self.has_begun:
            self.has_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

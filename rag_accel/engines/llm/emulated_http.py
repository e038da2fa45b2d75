"""Read and write the little of HTTP/1.1 that the loopback server of the emulated device needs.

Requests with a ``Content-Length`` body, keep-alive, JSON answers and server-sent events. No TLS, no
chunked requests, no pipelining: this serves tests and benchmarks on the loopback interface.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

_MAX_LENGTH_DIGITS = 18
_JSON = {"content-type": "application/json"}
_SSE = {
    "content-type": "text/event-stream",
    "cache-control": "no-store",
    "transfer-encoding": "chunked",
}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Hold one request; header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def keeps_alive(self) -> bool:
        """Tell whether the client wants to send another request on this connection."""
        return self.headers.get("connection", "").lower() != "close"


@dataclass(frozen=True, slots=True)
class HttpProblem:
    """Say why a request is refused before anybody looked at what it asks."""

    status: HTTPStatus
    message: str


async def read_request(
    reader: asyncio.StreamReader, max_body_bytes: int
) -> HttpRequest | HttpProblem | None:
    """Read one request; None when the client closed the connection first."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        return HttpProblem(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "headers too long")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3:
        return HttpProblem(HTTPStatus.BAD_REQUEST, "no HTTP request line")
    headers = _parse_headers(lines)
    length = _body_length(headers)
    if length is None:
        return HttpProblem(HTTPStatus.LENGTH_REQUIRED, "a body needs a Content-Length")
    if length > max_body_bytes:
        message = f"body longer than {max_body_bytes} bytes"
        return HttpProblem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
    try:
        body = await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        return None
    return HttpRequest(parts[0], parts[1], headers, body)


class ResponseWriter:
    """Write one answer to a connection; ``is_started`` once a byte of it was written."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.is_started = False
        self._writer = writer

    async def send_json(
        self, status: int, payload: object, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a whole JSON answer."""
        await self.send_body(status, json.dumps(payload).encode(), headers)

    async def send_body(
        self,
        status: int,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        *,
        missing_bytes: int = 0,
    ) -> None:
        """Send a whole answer; ``missing_bytes`` announces more than is sent (scripted faults)."""
        self.is_started = True
        length = {"content-length": str(len(body) + missing_bytes)}
        self._writer.write(_head(status, {**_JSON, **length, **(headers or {})}) + body)
        await self._writer.drain()

    async def start_events(self) -> None:
        """Send the head of a stream of server-sent events."""
        self.is_started = True
        self._writer.write(_head(HTTPStatus.OK, _SSE))
        await self._writer.drain()

    async def send_event(self, data: str) -> None:
        """Send one event at once."""
        event = f"data: {data}\n\n".encode()
        self._writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        await self._writer.drain()

    async def end_events(self) -> None:
        """Send the last chunk."""
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def drop(self) -> None:
        """Break the connection without a word."""
        self._writer.transport.abort()


def _parse_headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return headers


def _body_length(headers: Mapping[str, str]) -> int | None:
    if "transfer-encoding" in headers:
        return None
    text = headers.get("content-length", "0")
    return int(text) if text.isdecimal() and len(text) <= _MAX_LENGTH_DIGITS else None


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Unknown"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {headers[name]}" for name in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

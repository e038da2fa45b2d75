"""Serve an emulated device over a loopback HTTP server that speaks the OpenAI chat protocol.

``POST /v1/chat/completions`` (whole or streamed) and ``GET /v1/models``. Standard library only; one
thread with its own event loop; connections, header and body sizes and idle time are bounded.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Any

from rag_accel.engines.llm.emulated import EmulatedDevice
from rag_accel.engines.llm.emulated_chat import ChatService
from rag_accel.engines.llm.emulated_faults import Fault
from rag_accel.engines.llm.emulated_http import (
    HttpProblem,
    HttpRequest,
    ResponseWriter,
    read_request,
)
from rag_accel.engines.llm.emulated_openai import error_json
from rag_accel.engines.llm.loop_thread import LoopThread
from rag_accel.errors import ClosedError

_LOOPBACK = "127.0.0.1"
_HEADER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bound what clients may make the server hold."""

    max_connections: int = 1024
    max_body_bytes: int = 8 * 1024 * 1024
    idle_s: float = 30.0


class EmulatedServer:
    """Serve ``device`` on a free loopback port; start and stop it by this handle.

    Args:
        device: who answers; never closed from here.
        model: name listed under ``/v1/models``; any name is accepted in requests.
        api_key: if given, other keys are refused with 401.
        port: 0 takes a free one.
    """

    def __init__(
        self,
        device: EmulatedDevice,
        *,
        model: str = "emulated",
        api_key: str | None = None,
        port: int = 0,
        limits: ServerLimits | None = None,
    ) -> None:
        self._service = ChatService(device)
        self._model = model
        self._authorization = None if api_key is None else f"Bearer {api_key}".encode()
        self._port = port
        self._limits = limits or ServerLimits()
        self._thread = LoopThread("emulated-server")
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._closing = False

    def __enter__(self) -> EmulatedServer:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def base_url(self) -> str:
        """Return what an OpenAI client takes as its base URL; raises ClosedError if not started."""
        if self._server is None:
            raise ClosedError("the server is not running", where="emulated server")
        return f"http://{_LOOPBACK}:{self._port}/v1"

    @property
    def num_calls(self) -> int:
        """Return how many chat completions were asked for, faults included."""
        return self._service.num_calls

    def start(self) -> EmulatedServer:
        """Listen; raises OSError if the port cannot be had."""
        self._thread.start()
        try:
            self._thread.call(self._listen()).result()
        except OSError:
            self._thread.close()
            raise
        return self

    def script(self, *faults: Fault) -> None:
        """Let the next calls meet these faults, in order, one each."""
        self._service.script(*faults)

    def close(self) -> None:
        """Drop the connections, cancel what they wait for, and end the thread; idempotent."""
        if self._server is not None:
            self._thread.call(self._shut_down(self._server)).result()
            self._server = None
        self._thread.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(
            self._accept, _LOOPBACK, self._port, limit=_HEADER_BYTES
        )
        self._port = self._server.sockets[0].getsockname()[1]

    async def _shut_down(self, server: asyncio.Server) -> None:
        self._closing = True
        for listening in server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        # asyncio leaks a connection it has accepted but not yet set up when the server closes.
        await asyncio.sleep(0)
        server.close()
        connections = dict(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        for writer in connections.values():
            writer.transport.abort()  # what a client has not read yet must not keep it open
        await server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closing:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(self._hang_up)

    def _hang_up(self, task: asyncio.Task[None]) -> None:
        # Not in a finally of the task: one that is cancelled before it starts never enters it.
        self._connections.pop(task).close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._serve_one(reader, writer):
                pass
        except (ConnectionError, TimeoutError):
            pass  # the client left or stayed silent: there is nobody to tell

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; false ends the connection."""
        async with asyncio.timeout(self._limits.idle_s):
            request = await read_request(reader, self._limits.max_body_bytes)
        out = ResponseWriter(writer)
        if request is None:
            return False
        if len(self._connections) > self._limits.max_connections:
            request = HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections")
        if isinstance(request, HttpProblem):
            await _send_problem(out, request.status, request.message, {"connection": "close"})
            return False
        usable = await _while_connected(reader, self._route(request, out))
        return usable and request.keeps_alive

    async def _route(self, request: HttpRequest, out: ResponseWriter) -> bool:
        path = request.path.partition("?")[0]
        methods = {"/v1/chat/completions": "POST", "/v1/models": "GET"}
        if path not in methods:
            return await _send_problem(out, HTTPStatus.NOT_FOUND, f"no such path: {path}")
        if request.method != methods[path]:
            allow = {"allow": methods[path]}
            message = f"use {methods[path]}"
            return await _send_problem(out, HTTPStatus.METHOD_NOT_ALLOWED, message, allow)
        if not self._is_authorized(request):
            return await _send_problem(out, HTTPStatus.UNAUTHORIZED, "wrong API key")
        if path == "/v1/chat/completions":
            return await self._service.answer(request.body, out)
        entry = {"id": self._model, "object": "model", "created": 0, "owned_by": "rag_accel"}
        await out.send_json(HTTPStatus.OK, {"object": "list", "data": [entry]})
        return True

    def _is_authorized(self, request: HttpRequest) -> bool:
        if self._authorization is None:
            return True
        given = request.headers.get("authorization", "").encode("latin-1")
        return hmac.compare_digest(given, self._authorization)


async def _send_problem(
    out: ResponseWriter, status: HTTPStatus, message: str, headers: dict[str, str] | None = None
) -> bool:
    await out.send_json(status, error_json(message, "invalid_request_error"), headers)
    return True


async def _while_connected(reader: asyncio.StreamReader, work: Coroutine[Any, Any, bool]) -> bool:
    """Run ``work`` until it ends or the client leaves; bytes sent early end the connection too."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.done() and task.result() and not gone.done()
    finally:
        task.cancel()
        gone.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)

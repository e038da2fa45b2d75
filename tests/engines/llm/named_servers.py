"""Chat servers that answer with their names."""

from __future__ import annotations

import asyncio
import json
import threading

from aiohttp import web
from loopback_server import LoopbackServer

_HEAD = {"id": "c", "created": 1, "model": "m"}


class NamedServer(LoopbackServer):
    """A chat server whose answers are its name, and which notes what it was sent."""

    def __init__(self, name: str) -> None:
        super().__init__()
        #: answered with; None is an answer without text
        self.name: str | None = name
        self.prompts: list[str] = []
        self.keys: list[str | None] = []
        self.headers: list[dict[str, str]] = []
        self.models: list[str] = []
        #: until it is set, no answer ends
        self.may_end = threading.Event()
        self.may_end.set()
        self.status = 200
        self.retry_after: str | None = None

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/chat/completions", self._answer)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        call = await request.json()
        self.prompts.append(call["messages"][-1]["content"])
        self.keys.append(request.headers.get("authorization"))
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.models.append(call["model"])
        if self.status != 200:
            headers = {} if self.retry_after is None else {"retry-after": self.retry_after}
            error = {"error": {"message": "down"}}
            return web.json_response(error, status=self.status, headers=headers)
        if call.get("stream"):
            return await self._stream(request)
        message = {"role": "assistant", "content": self.name}
        await asyncio.to_thread(self.may_end.wait, 20.0)
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({**_HEAD, "object": "chat.completion", "choices": [choice]})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        """Stream the name by two pieces; where ``may_end`` is closed, wait for it in between."""
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for piece in (self.name, self.name):
            choice = {"index": 0, "delta": {"role": "assistant", "content": piece}}
            chunk = {**_HEAD, "object": "chat.completion.chunk", "choices": [choice]}
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
            await asyncio.to_thread(self.may_end.wait, 20.0)
        await response.write(b"data: [DONE]\n\n")
        return response


def wait_for_prompts(*servers: NamedServer) -> None:
    """Return once each of these servers was asked something."""
    for _ in range(4000):
        if all(server.prompts for server in servers):
            return
        threading.Event().wait(0.005)
    raise AssertionError(f"only {[server.name for server in servers if server.prompts]} were asked")

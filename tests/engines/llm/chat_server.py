"""Serve chat completions on a loopback port, as asked for or with scripted faults."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from aiohttp import web
from loopback_server import LoopbackServer


@dataclass(frozen=True, slots=True)
class Fault:
    """Describe how one chat completion goes wrong.

    Args:
        kind: ``status`` answers with an error status; ``drop`` breaks the connection before the
            first byte; ``truncate`` breaks it in the middle of the answer; ``slow`` waits
            before the first byte and then answers properly.
        after_deltas: texts that a stream sends before it is truncated.
    """

    kind: Literal["status", "drop", "truncate", "slow"]
    status: int = 500
    retry_after: str | None = None
    message: str = "scripted fault"
    delay_s: float = 0.0
    after_deltas: int = 0


#: outlasts every test
UNANSWERED = Fault("slow", delay_s=3600.0)


def answer_of(num_words: int) -> str:
    """Return the text of an answer of so many words."""
    return " ".join(f"word{number}" for number in range(num_words))


class ChatServer(LoopbackServer):
    """Answer ``POST /v1/chat/completions``; every call takes the next scripted fault, if any.

    Attributes:
        num_calls: calls until now.
        num_running: calls whose client still waits.
        headers: those of the last call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0
        self.num_running = 0
        self.headers: Mapping[str, str] = {}
        self._faults: deque[Fault] = deque()

    def script(self, *faults: Fault) -> None:
        """Let the next calls meet these faults, in order, one each."""
        self._faults.extend(faults)

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Answer chat completions."""
        router.add_post("/v1/chat/completions", self._count)

    async def _count(self, request: web.Request) -> web.StreamResponse:
        self.num_calls += 1
        self.num_running += 1
        self.headers = request.headers
        fault = self._faults.popleft() if self._faults else None
        try:
            return await _answer(request, fault)
        finally:
            self.num_running -= 1


async def _answer(request: web.Request, fault: Fault | None) -> web.StreamResponse:
    call = await request.json()
    if fault is not None and fault.kind == "slow":
        await asyncio.sleep(fault.delay_s)
        fault = None
    if fault is not None and fault.kind == "drop":
        return _break_off(request, web.Response())
    if fault is not None and fault.kind == "status":
        headers = {} if fault.retry_after is None else {"retry-after": fault.retry_after}
        error = {"error": {"message": fault.message}}
        return web.json_response(error, status=fault.status, headers=headers)
    return await (_stream if call.get("stream") else _whole)(request, call, fault)


async def _whole(
    request: web.Request, call: dict[str, Any], fault: Fault | None
) -> web.StreamResponse:
    message = {"role": "assistant", "content": answer_of(call["max_tokens"])}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    if fault is None:
        return web.json_response({"choices": [choice], "usage": _usage(call)})
    response = web.StreamResponse(headers={"content-length": "1000"})
    await response.prepare(request)
    await response.write(b'{"choices": [{"index": 0, "mess')
    return _break_off(request, response)


async def _stream(
    request: web.Request, call: dict[str, Any], fault: Fault | None
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    last = None if fault is None else fault.after_deltas + 1  # the first one tells the role
    for chunk in [*_chunks(call)][:last]:
        await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
    if fault is not None:
        return _break_off(request, response)
    await response.write(b"data: [DONE]\n\n")
    return response


def _chunks(call: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield _chunk({"role": "assistant"})
    for number in range(call["max_tokens"]):
        yield _chunk({"content": f"{' ' * bool(number)}word{number}"})
    yield _chunk({}, "stop")
    if call.get("stream_options", {}).get("include_usage"):
        yield {"choices": [], "usage": _usage(call)}


def _chunk(delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def _usage(call: dict[str, Any]) -> dict[str, int]:
    words = sum(len(turn["content"].split()) for turn in call["messages"])
    return {"prompt_tokens": words, "completion_tokens": call["max_tokens"]}


def _break_off(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.close()
    return response

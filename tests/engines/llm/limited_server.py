"""Serve OpenAI's chat completions and embeddings on a loopback port, at a limited rate."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from loopback_server import LoopbackServer


@dataclass(frozen=True, slots=True)
class Rate:
    """A bucket of tokens, of which each call takes one.

    Args:
        per_s: tokens that come in a second.
        burst: the most that there are, and those at the beginning.
    """

    per_s: float
    burst: int


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """The answer to one call.

    Args:
        status: an HTTP status; below 400 the call is answered.
        headers: sent with it.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


#: returns the answer to the call of this number and text; None leaves it to the rate
Script = Callable[[int, str], ScriptedAnswer | None]


class LimitedServer(LoopbackServer):
    """Answer ``POST /v1/chat/completions`` and ``/v1/embeddings``; beyond the rate 429.

    Args:
        rate: without one, no call is refused.
        answer_s: seconds an answer takes.
        retry_after: whether a refusal says when the next token comes.
        script: decides before the rate.
        say: returns the text that answers another.

    Attributes:
        texts: the text of each call, refused ones too, as they came.
        keys: the key of each call.
        retries: the number of retries that each call says it is.
        idempotency_keys: of each call.
        num_refused: calls that were refused.
        num_at_once: the most calls that were in the server at once.
        streams_end: streams wait for it after their last text.
    """

    def __init__(
        self,
        rate: Rate | None = None,
        *,
        answer_s: float = 0.0,
        retry_after: bool = False,
        script: Script | None = None,
        say: Callable[[str], str] = "re: {}".format,
    ) -> None:
        super().__init__()
        self._say = say
        self._rate, self._answer_s, self._retry_after = rate, answer_s, retry_after
        self._script = script
        self._tokens, self._counted_at = float(rate.burst if rate else 0), time.monotonic()
        self._num_inside = 0
        self.texts: list[str] = []
        self.keys: list[str] = []
        self.retries: list[int] = []
        self.idempotency_keys: list[str] = []
        self.num_refused = self.num_at_once = 0
        self.streams_end = True

    @property
    def num_calls(self) -> int:
        return len(self.texts)

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Answer both kinds of calls."""
        router.add_post("/v1/chat/completions", self._chat)
        router.add_post("/v1/embeddings", self._embed)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body: dict[str, Any] = await request.json()
        text = str(body["messages"][-1]["content"])
        answer = await self._enter(request, text)
        if answer.status >= 400:
            return _refusal(answer)
        if body.get("stream"):
            return await self._stream(request, text, answer)
        message = {"role": "assistant", "content": self._say(text)}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        said = {**_head("chat.completion"), "choices": choices}
        return web.json_response(said, headers=answer.headers)

    async def _embed(self, request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        answer = await self._enter(request, texts[0])
        if answer.status >= 400:
            return _refusal(answer)
        data = [
            {"object": "embedding", "index": index, "embedding": [float(len(text)), 1.0]}
            for index, text in enumerate(texts)
        ]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        said = {"object": "list", "data": data, "model": "m", "usage": usage}
        return web.json_response(said, headers=answer.headers)

    async def _stream(
        self, request: web.Request, text: str, answer: ScriptedAnswer
    ) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"content-type": "text/event-stream", **answer.headers}
        )
        await response.prepare(request)
        for word in ("re:", text):
            delta = {"index": 0, "delta": {"content": word}, "finish_reason": None}
            event = {**_head("chat.completion.chunk"), "choices": [delta]}
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        while not self.streams_end:  # noqa: ASYNC110 - tests set it from threads without a loop
            await asyncio.sleep(0.005)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _enter(self, request: web.Request, text: str) -> ScriptedAnswer:
        self.texts.append(text)
        self.keys.append(request.headers.get("authorization", "").removeprefix("Bearer "))
        self.retries.append(int(request.headers.get("x-stainless-retry-count", 0)))
        self.idempotency_keys.append(request.headers.get("idempotency-key", ""))
        found = self._script(len(self.texts) - 1, text) if self._script else None
        answer = found or self._by_rate()
        if answer.status >= 400:
            self.num_refused += 1
            return answer
        self._num_inside += 1
        self.num_at_once = max(self.num_at_once, self._num_inside)
        try:
            await asyncio.sleep(self._answer_s)
        finally:
            self._num_inside -= 1
        return answer

    def _by_rate(self) -> ScriptedAnswer:
        rate = self._rate
        if rate is None:
            return ScriptedAnswer()
        now = time.monotonic()
        come = (now - self._counted_at) * rate.per_s
        self._tokens, self._counted_at = min(rate.burst, self._tokens + come), now
        if self._tokens >= 1:
            self._tokens -= 1
            return ScriptedAnswer()
        if not self._retry_after:
            return ScriptedAnswer(429)
        return ScriptedAnswer(429, {"retry-after": f"{(1 - self._tokens) / rate.per_s:.3f}"})


def _head(kind: str) -> dict[str, Any]:
    return {"id": "c", "object": kind, "created": 0, "model": "m"}


def _refusal(answer: ScriptedAnswer) -> web.Response:
    said = {"error": {"message": f"refused with {answer.status}"}}
    return web.json_response(said, status=answer.status, headers=answer.headers)

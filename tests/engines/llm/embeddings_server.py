"""Serve OpenAI's embeddings on a loopback port, with scripted refusals."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from aiohttp import web
from loopback_server import LoopbackServer

DIMENSION = 8


@dataclass(frozen=True, slots=True)
class Refusal:
    """Answer a call with this status.

    Args:
        retry_after: what the server asks for, in seconds.
        echoes: the error says what was sent.
    """

    status: int
    retry_after: str | None = None
    echoes: bool = False


@dataclass(frozen=True, slots=True)
class Heard:
    """A call as the server heard it."""

    texts: tuple[str, ...]
    key: str
    tenant: str
    user: str


def vector_of(text: str) -> list[float]:
    """Return what the server makes of a text."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
    return np.random.default_rng(seed).normal(size=DIMENSION).astype(np.float32).tolist()


class EmbeddingsServer(LoopbackServer):
    """Answer ``POST /v1/embeddings``; every call takes the next scripted refusal, if any.

    Attributes:
        calls: the texts of each call.
        heard: each call with who it says it is from.
        models: the model of each call.
        bad: texts for which a call is refused with 400.
        awaited: calls that must be there at once before the first is answered.
        gate: calls of several texts wait for it.
        hangs: calls are never answered.
        answers_as: the model that answers name, by default the one asked for.
        vector: what the server makes of a text.
        indexes: returns the indexes of an answer to so many texts, in the order it is sent.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[str]] = []
        self.heard: list[Heard] = []
        self.models: list[str] = []
        self.bad: set[str] = set()
        self.refusals: deque[Refusal] = deque()
        self.awaited = 0
        self.gate = threading.Event()
        self.gate.set()
        self.hangs = False
        self.answers_as: str | None = None
        self.vector = vector_of
        self.indexes: Callable[[int], list[int]] = lambda count: list(range(count))

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Answer embeddings."""
        router.add_post("/v1/embeddings", self._answer)

    async def _answer(self, request: web.Request) -> web.Response:
        call: dict[str, Any] = await request.json()
        texts = [call["input"]] if isinstance(call["input"], str) else call["input"]
        self.calls.append(texts)
        self.models.append(call["model"])
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        key = request.headers.get("api-key", bearer)  # as Azure names it
        tenant = request.headers.get("x-tenant", "")
        self.heard.append(Heard(tuple(texts), key, tenant, call.get("user", "")))
        while (  # noqa: ASYNC110 - tests set these from threads that have no loop
            self.hangs
            or len(self.calls) < self.awaited
            or (len(texts) > 1 and not self.gate.is_set())
        ):
            await asyncio.sleep(0.005)
        if self.refusals:
            refusal = self.refusals.popleft()
            wait = {} if refusal.retry_after is None else {"retry-after": refusal.retry_after}
            said = {"message": f"not now: {texts}"} if refusal.echoes else {}
            return web.json_response({"error": said}, status=refusal.status, headers=wait)
        if bad := self.bad & set(texts):
            return web.json_response({"error": {"message": f"bad: {bad}"}}, status=400)
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": _coded(self.vector(texts[index]), call),
            }
            for index in self.indexes(len(texts))
        ]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        model = self.answers_as or call["model"]
        answer = {"object": "list", "data": data, "model": model, "usage": usage}
        return web.json_response(answer)


def _coded(vector: list[float], call: dict[str, Any]) -> Any:
    if call.get("encoding_format") != "base64":
        return vector
    return base64.b64encode(np.array(vector, np.float32).tobytes()).decode()

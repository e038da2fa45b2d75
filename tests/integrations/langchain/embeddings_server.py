"""Serve OpenAI's embeddings on a loopback port, with scripted refusals."""

from __future__ import annotations

import base64
import hashlib
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from aiohttp import web
from loopback_server import LoopbackServer

DIMENSION = 8


@dataclass(frozen=True, slots=True)
class Refusal:
    """Answer a call with this status; ``retry_after`` is what the server asks for, in seconds."""

    status: int
    retry_after: str | None = None


def vector_of(text: str) -> list[float]:
    """Return what the server makes of a text."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
    return np.random.default_rng(seed).normal(size=DIMENSION).astype(np.float32).tolist()


class EmbeddingsServer(LoopbackServer):
    """Answer ``POST /v1/embeddings``; every call takes the next scripted refusal, if any.

    Attributes:
        calls: the texts of each call.
        bad: texts for which a call is refused with 400.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[str]] = []
        self.bad: set[str] = set()
        self.refusals: deque[Refusal] = deque()

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Answer embeddings."""
        router.add_post("/v1/embeddings", self._answer)

    async def _answer(self, request: web.Request) -> web.Response:
        call: dict[str, Any] = await request.json()
        texts = call["input"]
        self.calls.append(texts)
        if self.refusals:
            refusal = self.refusals.popleft()
            wait = {} if refusal.retry_after is None else {"retry-after": refusal.retry_after}
            return web.json_response({"error": {}}, status=refusal.status, headers=wait)
        if bad := self.bad & set(texts):
            return web.json_response({"error": {"message": f"bad: {bad}"}}, status=400)
        data = [
            {"object": "embedding", "index": place, "embedding": _coded(vector_of(text), call)}
            for place, text in enumerate(texts)
        ]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        answer = {"object": "list", "data": data, "model": call["model"], "usage": usage}
        return web.json_response(answer)


def _coded(vector: list[float], call: dict[str, Any]) -> Any:
    if call.get("encoding_format") != "base64":
        return vector
    return base64.b64encode(np.array(vector, np.float32).tobytes()).decode()

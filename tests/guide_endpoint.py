"""Serve OpenAI's endpoints to the programs of the guides, on a loopback port."""

from __future__ import annotations

import base64
import re
import time
from typing import Any

import numpy as np
from aiohttp import web
from loopback_server import LoopbackServer

SENTENCE = re.compile(r"[A-Z][^.?\n]*\.")


class GuideEndpoint(LoopbackServer):
    """Embed a text by its words; answer with the sentence of the prompt nearest to its end.

    Attributes:
        environment: with which the clients of OpenAI find it.
    """

    @property
    def environment(self) -> dict[str, str]:
        return {"OPENAI_BASE_URL": self.base_url, "OPENAI_API_KEY": "key"}

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Answer both kinds of calls."""
        router.add_post("/v1/chat/completions", self._chat)
        router.add_post("/v1/embeddings", self._embed)

    async def _embed(self, request: web.Request) -> web.Response:
        call: dict[str, Any] = await request.json()
        texts = [call["input"]] if isinstance(call["input"], str) else call["input"]
        data = [
            {"object": "embedding", "index": index, "embedding": _coded(_vector(text), call)}
            for index, text in enumerate(texts)
        ]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        said = {"object": "list", "data": data, "model": call["model"], "usage": usage}
        return web.json_response(said)

    async def _chat(self, request: web.Request) -> web.Response:
        call: dict[str, Any] = await request.json()
        prompt = str(call["messages"][-1]["content"])
        context, _, question = prompt.rpartition("\n")
        asked = _vector(question)
        text = max(SENTENCE.findall(context), key=lambda found: float(_vector(found) @ asked))
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        head = {"id": "c", "object": "chat.completion", "created": int(time.time())}
        usage = {"prompt_tokens": 20, "completion_tokens": 6, "total_tokens": 26}
        said = {**head, "model": call["model"], "choices": [choice], "usage": usage}
        return web.json_response(said)


def _vector(text: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a count of words by the sum of their letters, and one more component."""
    vector = np.zeros(65, np.float32)
    vector[64] = 0.1
    for word in re.findall(r"\w{4,}", text.lower()):
        vector[sum(word.encode()) % 64] += 1
    return vector / np.linalg.norm(vector)


def _coded(vector: np.ndarray[Any, np.dtype[np.float32]], call: dict[str, Any]) -> Any:
    if call.get("encoding_format") != "base64":
        return vector.tolist()
    return base64.b64encode(vector.tobytes()).decode()

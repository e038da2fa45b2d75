"""Serve OpenAI's endpoints in a scripted time: ``python -m bench.embedding.hosted_server``.

It prints its port, then answers each line of standard input by the number of texts in each call
since the last one, as JSON. It ends with standard input.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import json
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from aiohttp import web

#: that of OpenAI's smaller model
DIMENSION = 1536


class ScriptedEmbeddings:
    """An endpoint whose calls take a scripted time; calls above its capacity queue in order.

    Args:
        at_once: calls that run at the same time.
        call_s: seconds of a call.
        text_s: seconds of each of its texts, besides.
    """

    def __init__(self, at_once: int, call_s: float, text_s: float) -> None:
        self._capacity = asyncio.Semaphore(at_once)
        self._call_s = call_s
        self._text_s = text_s
        self._num_texts: list[int] = []

    def take_calls(self) -> list[int]:
        """Return the number of texts in each call since the last time, and forget them."""
        taken, self._num_texts = self._num_texts, []
        return taken

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a call as OpenAI does."""
        call: dict[str, Any] = await request.json()
        texts = [call["input"]] if isinstance(call["input"], str) else call["input"]
        self._num_texts.append(len(texts))
        async with self._capacity:
            await asyncio.sleep(self._call_s + self._text_s * len(texts))
        is_coded = call.get("encoding_format") == "base64"
        data = [
            {"object": "embedding", "index": index, "embedding": _vector(text, is_coded)}
            for index, text in enumerate(texts)
        ]
        usage = {"prompt_tokens": len(texts), "total_tokens": len(texts)}
        return web.json_response(
            {"object": "list", "data": data, "model": call["model"], "usage": usage}
        )


class ScriptedChats:
    """An endpoint that answers a chat in the time of its tokens, however many it answers at once.

    A token is a word. What is asked for simpler questions gets three of them.

    Args:
        prompt_token_s: seconds of each token of a prompt.
        step_s: seconds of each token of an answer.
        tokens: of an answer.
    """

    def __init__(self, prompt_token_s: float, step_s: float, tokens: int) -> None:
        self._prompt_token_s = prompt_token_s
        self._step_s = step_s
        self._tokens = tokens

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a call as OpenAI does."""
        call: dict[str, Any] = await request.json()
        prompt = " ".join(str(message["content"]) for message in call["messages"])
        text = scripted_text(prompt, self._tokens)
        read, written = len(prompt.split()), len(text.split())
        await asyncio.sleep(self._prompt_token_s * read + self._step_s * written)
        message = {"role": "assistant", "content": text}
        usage = {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        }
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return web.json_response(
            {
                **{"id": "chat", "object": "chat.completion", "created": 0},
                **{"model": call["model"], "choices": [choice], "usage": usage},
            }
        )


def scripted_text(prompt: str, tokens: int) -> str:
    """Return what a prompt is answered by: words that follow from it alone."""
    digest = hashlib.sha256(prompt.encode()).hexdigest()
    if prompt.endswith("Simpler questions:"):
        return "\n".join(f"What is {digest[place : place + 6]} there?" for place in (0, 6, 12))
    return " ".join(digest[place % 60 : place % 60 + 4] for place in range(tokens))


@cache
def _vector(text: str, is_coded: bool) -> Any:
    """Return the vector of a text: random numbers that follow from it alone, as they are sent."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    vector = np.random.default_rng(seed).normal(size=DIMENSION).astype(np.float32)
    return base64.b64encode(vector.tobytes()).decode() if is_coded else vector.tolist()


def main(argv: Sequence[str] | None = None) -> None:
    """Serve."""
    parser = argparse.ArgumentParser(prog="python -m bench.embedding.hosted_server")
    parser.add_argument("--at-once", type=int, default=1, help="calls at the same time")
    parser.add_argument("--call-s", type=float, default=0.0, help="seconds of a call")
    parser.add_argument("--text-s", type=float, default=0.0, help="seconds of a text, besides")
    parser.add_argument("--prompt-token-s", type=float, default=0.0, help="seconds of a chat's")
    parser.add_argument("--step-s", type=float, default=0.0, help="seconds of an answer's token")
    parser.add_argument("--tokens", type=int, default=1, help="of an answer")
    arguments = parser.parse_args(argv)
    embeddings = ScriptedEmbeddings(arguments.at_once, arguments.call_s, arguments.text_s)
    chats = ScriptedChats(arguments.prompt_token_s, arguments.step_s, arguments.tokens)
    asyncio.run(_serve(embeddings, chats))


async def _serve(embeddings: ScriptedEmbeddings, chats: ScriptedChats) -> None:
    app = web.Application()
    app.router.add_post("/v1/embeddings", embeddings.answer)
    app.router.add_post("/v1/chat/completions", chats.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=256).start()
    print(runner.addresses[0][1], flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(embeddings.take_calls()), flush=True)
    await runner.cleanup()


if __name__ == "__main__":
    main()

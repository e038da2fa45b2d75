"""Serve OpenAI's endpoints in a scripted time: ``python -m bench.embedding.hosted_server``.

It prints its port. Then it answers each line of standard input by a JSON object of the time since
the last one: ``texts`` has the number of texts in each call for embeddings, ``chats`` the number of
calls for chats, refused ones too; ``tokens`` is how many calls for chats it would take now. It ends
with standard input.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import json
import math
import sys
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from aiohttp import web

#: that of OpenAI's smaller model
DIMENSION = 1536
#: of a search in the store
SEARCH_S = 0.01


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


class Rate:
    """A bucket of tokens, of which each call takes one.

    Args:
        per_s: tokens that come in a second; infinite for a server that refuses nothing.
        burst: the most that there are, and as many as at the beginning.
    """

    def __init__(self, per_s: float, burst: int) -> None:
        self._per_s, self._burst = per_s, burst
        self._tokens, self._counted_at = float(burst), time.monotonic()

    def tokens(self) -> float:
        """Return the tokens that there are now."""
        now = time.monotonic()
        if now > self._counted_at:
            come = (now - self._counted_at) * self._per_s
            self._tokens, self._counted_at = min(self._burst, self._tokens + come), now
        return self._tokens

    def take(self) -> bool:
        """Take a token; tell whether there was one."""
        has_token = self.tokens() >= 1 or math.isinf(self._per_s)
        self._tokens -= has_token
        return has_token


class ScriptedChats:
    """An endpoint that answers a chat in the time of its tokens, however many it answers at once.

    A token is a word. What is asked for simpler questions gets three of them. A question that comes
    with tools gets a call of the first tool, with the question as its query. Calls beyond the rate
    get HTTP 429 at once, without a hint when to come again.

    Args:
        prompt_token_s: seconds of each token of a prompt.
        step_s: seconds of each token of an answer.
        tokens: of an answer.
        rate: that of its calls.
    """

    def __init__(self, prompt_token_s: float, step_s: float, tokens: int, rate: Rate) -> None:
        self._prompt_token_s = prompt_token_s
        self._step_s = step_s
        self._tokens = tokens
        self._rate = rate
        self._num_calls = 0

    def take_state(self) -> dict[str, float]:
        """Return the calls since the last time, and forget them; and the tokens of the rate."""
        taken, self._num_calls = self._num_calls, 0
        return {"chats": taken, "tokens": self._rate.tokens()}

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a call as OpenAI does."""
        call: dict[str, Any] = await request.json()
        self._num_calls += 1
        if not self._rate.take():
            return web.json_response({"error": {"message": "too many requests"}}, status=429)
        prompt = " ".join(str(message["content"]) for message in call["messages"])
        text = scripted_text(prompt, self._tokens)
        read, written = len(prompt.split()), len(text.split())
        await asyncio.sleep(self._prompt_token_s * read + self._step_s * written)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        is_asked = call["messages"][-1]["role"] == "user"
        if tools := call.get("tools") if is_asked else None:
            function = {"name": tools[0]["function"]["name"], "arguments": _query(call)}
            message["tool_calls"] = [{"id": "call", "type": "function", "function": function}]
        usage = {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        }
        reason = "tool_calls" if "tool_calls" in message else "stop"
        choice = {"index": 0, "finish_reason": reason, "message": message}
        return web.json_response(
            {
                **{"id": "chat", "object": "chat.completion", "created": 0},
                **{"model": call["model"], "choices": [choice], "usage": usage},
            }
        )


def _query(call: dict[str, Any]) -> str:
    return json.dumps({"query": call["messages"][-1]["content"]})


async def _search(request: web.Request) -> web.Response:
    """Answer a search in 32 documents: the numbers of two that follow from the vector alone."""
    call: dict[str, Any] = await request.json()
    await asyncio.sleep(SEARCH_S)
    first = int(np.argmax(call["vector"])) % 31
    return web.json_response([first, first + 1])


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
    parser.add_argument("--rate", type=float, default=math.inf, help="chats a second; more get 429")
    parser.add_argument("--burst", type=int, default=1, help="chats above the rate at first")
    arguments = parser.parse_args(argv)
    embeddings = ScriptedEmbeddings(arguments.at_once, arguments.call_s, arguments.text_s)
    rate = Rate(arguments.rate, arguments.burst)
    chats = ScriptedChats(arguments.prompt_token_s, arguments.step_s, arguments.tokens, rate)
    asyncio.run(_serve(embeddings, chats))


async def _serve(embeddings: ScriptedEmbeddings, chats: ScriptedChats) -> None:
    app = web.Application()
    app.router.add_post("/v1/embeddings", embeddings.answer)
    app.router.add_post("/v1/chat/completions", chats.answer)
    app.router.add_post("/v1/search", _search)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=256).start()
    print(runner.addresses[0][1], flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        state = {"texts": embeddings.take_calls(), **chats.take_state()}
        print(json.dumps(state), flush=True)
    await runner.cleanup()


if __name__ == "__main__":
    main()

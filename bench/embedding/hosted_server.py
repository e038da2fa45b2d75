"""Serve OpenAI's embeddings in a scripted time: ``python -m bench.embedding.hosted_server``.

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


@cache
def _vector(text: str, is_coded: bool) -> Any:
    """Return the vector of a text: random numbers that follow from it alone, as they are sent."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    vector = np.random.default_rng(seed).normal(size=DIMENSION).astype(np.float32)
    return base64.b64encode(vector.tobytes()).decode() if is_coded else vector.tolist()


def main(argv: Sequence[str] | None = None) -> None:
    """Serve."""
    parser = argparse.ArgumentParser(prog="python -m bench.embedding.hosted_server")
    parser.add_argument("--at-once", type=int, required=True, help="calls at the same time")
    parser.add_argument("--call-s", type=float, required=True, help="seconds of a call")
    parser.add_argument("--text-s", type=float, required=True, help="seconds of a text, besides")
    arguments = parser.parse_args(argv)
    asyncio.run(_serve(arguments.at_once, arguments.call_s, arguments.text_s))


async def _serve(at_once: int, call_s: float, text_s: float) -> None:
    embeddings = ScriptedEmbeddings(at_once, call_s, text_s)
    app = web.Application()
    app.router.add_post("/v1/embeddings", embeddings.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=256).start()
    print(runner.addresses[0][1], flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(embeddings.take_calls()), flush=True)
    await runner.cleanup()


if __name__ == "__main__":
    main()

"""Serve chats whose prompts take time unless they are kept: ``python -m bench.early_server``.

Two arguments may say how many tokens an answer has, and how many seconds each of them takes.

A token is a word. One lane computes prompts in steps, also those of several requests in turn. The
server keeps what it has computed, by blocks, also of a prompt whose client has gone: a step that
has begun ends. It prints its port. Then it answers each line of standard input by a JSON object
with the tokens since the last one, and ends with standard input.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from aiohttp import web

from bench.embedding.hosted_server import scripted_text

#: tokens of a block of the cache, and of a step of the lane
BLOCK, STEP = 16, 48
#: seconds of a prompt's token that is not kept, and of an answer's
PROMPT_TOKEN_S, TOKEN_S = 0.0001, 0.01
#: what a prompt ends with that asks for a list
ASKS_LINES = "One a line:"
NUM_LINES, LINE_TOKENS = 4, 20
#: of any other answer
TOKENS = 4


class PromptCache:
    """The kept blocks of prompts, each known by all tokens up to its end."""

    def __init__(self) -> None:
        self._kept = set[int]()
        #: computed for a beginning, and found by no whole prompt yet
        self._early = set[int]()

    def known(self, blocks: Sequence[int], is_early: bool) -> tuple[int, int]:
        """Return how many first blocks are kept, and how many of them beginnings have paid for."""
        count = next((at for at, block in enumerate(blocks) if block not in self._kept), None)
        found = blocks if count is None else blocks[:count]
        paid = set[int]() if is_early else self._early.intersection(found)
        self._early -= paid
        return len(found), len(paid)

    def keep(self, blocks: Sequence[int], is_early: bool) -> None:
        """Keep blocks."""
        if is_early:
            self._early.update(set(blocks) - self._kept)
        self._kept.update(blocks)


class ScriptedPrompts:
    """An endpoint of chats."""

    def __init__(self, tokens: int = TOKENS, token_s: float = TOKEN_S) -> None:
        self._tokens, self._token_s = tokens, token_s
        self._cache = PromptCache()
        self._lane = asyncio.Lock()
        self._free_at = 0.0
        self._state: dict[str, int] = {"prompt": 0, "early": 0, "used": 0}
        self._state |= {"computed": 0, "decoded": 0}

    def take_state(self) -> dict[str, int]:
        """Return the tokens since the last time, and forget them.

        ``prompt`` are those of whole prompts, ``early`` those computed for beginnings, ``used``
        those of them that a whole prompt has found; ``computed`` are all that were not kept;
        ``decoded`` are those of answers, also of answers whose client has gone, up to then.
        """
        taken, self._state = self._state, dict.fromkeys(self._state, 0)
        return taken

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a call as OpenAI does; one of a single token is a beginning."""
        arrived = time.monotonic()
        call: dict[str, Any] = await request.json()
        prompt = " ".join(str(message["content"]) for message in call["messages"])
        is_early = call.get("max_tokens") == 1
        read, cached = await self._compute(prompt.split(), is_early, arrived)
        words = list(pieces(prompt, self._tokens))[: 1 if is_early else None]
        usage = {
            "prompt_tokens": read,
            "completion_tokens": len(words),
            "total_tokens": read + len(words),
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        head = {"id": "chat", "created": 0, "model": call["model"]}
        if call.get("stream"):
            return await self._stream(request, head, words, usage)
        begun = time.monotonic()
        try:
            await asyncio.sleep(self._token_s * len(words))
        finally:
            done = int((time.monotonic() - begun) / self._token_s)
            self._state["decoded"] += min(len(words), done)
        message = {"role": "assistant", "content": "".join(words)}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        whole = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
        return web.json_response(whole)

    async def _compute(
        self, words: Sequence[str], is_early: bool, arrived: float
    ) -> tuple[int, int]:
        """Compute a prompt; return its tokens, and those that were kept."""
        blocks = list(chained(words))
        known, paid = self._cache.known(blocks, is_early)
        at = cached = known * BLOCK
        self._state["used"] += paid * BLOCK
        self._state["prompt"] += 0 if is_early else len(words)
        while at < len(words):
            async with self._lane:
                step = min(STEP, len(words) - at)
                # Of the script, not of the clock: late wakes are not added up.
                self._free_at = max(self._free_at, arrived) + step * PROMPT_TOKEN_S
                at += step
                self._state["early"] += step if is_early else 0
                self._state["computed"] += step
                self._cache.keep(blocks[: at // BLOCK], is_early)
                await asyncio.sleep(self._free_at - time.monotonic())
        return len(words), cached

    async def _stream(
        self, request: web.Request, head: dict[str, Any], words: Sequence[str], usage: Any
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        chunk = {**head, "object": "chat.completion.chunk"}
        begun = time.monotonic()
        for number, word in enumerate(words, start=1):
            await asyncio.sleep(begun + number * self._token_s - time.monotonic())
            self._state["decoded"] += 1
            end = "stop" if number == len(words) else None
            choice = {"index": 0, "delta": {"content": word}, "finish_reason": end}
            await _send(response, {**chunk, "choices": [choice]})
        await _send(response, {**chunk, "choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response


async def _send(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(f"data: {json.dumps(event)}\n\n".encode())


def chained(words: Sequence[str]) -> Iterator[int]:
    """Yield a number for each whole block of a prompt, which tells all up to its end."""
    known = 0
    for start in range(0, len(words) - BLOCK + 1, BLOCK):
        known = hash((known, *words[start : start + BLOCK]))
        yield known


def pieces(prompt: str, tokens: int = TOKENS) -> Iterator[str]:
    """Yield what a prompt is answered by, a token each: words, or lines where it asks for them."""
    asks_lines = prompt.endswith(ASKS_LINES)
    lines = NUM_LINES if asks_lines else 1
    for line in range(lines):
        asked = f"{prompt} {line}" if asks_lines else prompt
        words = scripted_text(asked, LINE_TOKENS if asks_lines else tokens).split()
        for place, word in enumerate(words):
            is_last = place + 1 == len(words)
            yield word + (" " if not is_last else "\n" if line + 1 < lines else "")


async def serve() -> None:
    """Serve until the standard input ends."""
    said = dict(enumerate(sys.argv[1:]))
    prompts = ScriptedPrompts(int(said.get(0, TOKENS)), float(said.get(1, TOKEN_S)))
    app = web.Application()
    app.router.add_post("/v1/chat/completions", prompts.answer)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=256).start()
    print(runner.addresses[0][1], flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(prompts.take_state()), flush=True)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve())

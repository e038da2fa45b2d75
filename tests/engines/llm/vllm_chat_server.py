"""A loopback server that answers as vLLM with our connector does, without a model."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web
from loopback_server import LoopbackServer

from rag_accel.engines.llm.remote.servers import SERVERS


class VllmChatServer(LoopbackServer):
    """Answer models, chat completions, completions and tokens; a token is a word.

    Args:
        owner: of its models.
        has_connector: whether it reads ``kv_transfer_params``.

    Attributes:
        models_status: with which it answers ``/models``.
        priority_status: with which it answers a request that has a priority.
        answer: the text of whole chat completions.
        paths: those asked for, in order.
        bodies: of the prompts.
    """

    def __init__(self, owner: str = "vllm", *, has_connector: bool = True) -> None:
        super().__init__()
        self.owner, self.has_connector = owner, has_connector
        self.models_status = self.priority_status = 200
        self.redirect = ""
        self.answer = "an answer"
        self.has_tokenize = True
        self.load = {"running": 0.0, "waiting": 0.0, "usage": 0.0}
        self.paths: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.kept: set[tuple[int, ...]] = set()
        self._words: dict[str, int] = {}
        self.models_asked = threading.Event()
        self._may_answer = threading.Event()
        self._may_answer.set()

    def hold_models(self) -> None:
        """Keep ``/models`` waiting until ``release_models``."""
        self._may_answer.clear()

    def release_models(self) -> None:
        """Answer ``/models`` from now on, also to those that wait."""
        self._may_answer.set()

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Answer what vLLM does."""
        router.add_get("/v1/models", self._models)
        router.add_get("/metrics", self._metrics)
        router.add_post("/v1/chat/completions", self._chat)
        router.add_post("/v1/completions", self._completion)
        router.add_post("/tokenize", self._tokenize)

    async def _models(self, request: web.Request) -> web.Response:
        self.paths.append(request.path)
        self.models_asked.set()
        await asyncio.get_running_loop().run_in_executor(None, self._may_answer.wait, 60)
        if self.redirect:
            raise web.HTTPFound(self.redirect)
        entry = {"id": "tiny", "object": "model", "owned_by": self.owner, "max_model_len": 4096}
        return web.json_response({"object": "list", "data": [entry]}, status=self.models_status)

    async def _metrics(self, request: web.Request) -> web.Response:
        self.paths.append(request.path)
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        lines = [
            f'vllm:{name}{{model_name="tiny"}} {value}'
            for name, value in zip(names, self.load.values(), strict=True)
        ]
        return web.Response(text="# HELP vllm:x y\n" + "\n".join(lines) + "\n")

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if "priority" in body and self.priority_status != 200:
            error = {"error": {"message": "Got priority but it is not enabled"}}
            return web.json_response(error, status=self.priority_status)
        usage = self._usage(" ".join(str(turn["content"]) for turn in body["messages"]))
        if body.get("stream"):
            return await self._stream(request, body, "chat.completion.chunk", usage)
        message = {"role": "assistant", "content": self.answer}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return self._whole(body, "chat.completion", choice, usage)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        body = await self._body(request)
        if "priority" in body and self.priority_status != 200:
            error = {"error": {"message": "Got priority but it is not enabled"}}
            return web.json_response(error, status=self.priority_status)
        prompt = body["prompt"]
        if body.get("stream"):
            return await self._stream(request, body, "text_completion", self._usage(str(prompt)))
        choice = {"index": 0, "text": "an answer", "finish_reason": "stop", "logprobs": None}
        return self._whole(body, "text_completion", choice, self._usage(str(prompt)))

    async def _tokenize(self, request: web.Request) -> web.Response:
        if not self.has_tokenize:
            raise web.HTTPNotFound
        self.paths.append(request.path)
        body = await request.json()
        text = body.get("prompt")
        if text is None:
            turns = body["messages"]
            text = " ".join(f"<{turn['role']}> {turn['content']}" for turn in turns)
        words = str(text).split()
        ids = [self._words.setdefault(word, len(self._words) + 10) for word in words]
        return web.json_response({"count": len(ids), "max_model_len": 4096, "tokens": ids})

    async def _body(self, request: web.Request) -> dict[str, Any]:
        self.paths.append(request.path)
        body: dict[str, Any] = await request.json()
        self.bodies.append(body)
        return body

    def _usage(self, text: str) -> dict[str, Any]:
        details = {"cached_tokens": 7}
        words = len(text.split())
        return {
            "prompt_tokens": words,
            "completion_tokens": 2,
            "total_tokens": words + 2,
            "prompt_tokens_details": details,
        }

    def _said(self, body: dict[str, Any]) -> dict[str, Any] | None:
        params = (body.get("kv_transfer_params") or {}).get("rag_accel")
        if params is None or not self.has_connector:
            return None
        reused = 7
        if "spans" in params:
            ids = tuple(body["prompt"])
            reused = len(ids) - 1 if ids in self.kept else 0
            self.kept.add(ids)
        said = {
            "reuse": params["reuse"],
            "texts": len(params.get("texts", params.get("spans", ()))),
            "reused_tokens": reused,
            "encoded_tokens": 2,
            "computed_tokens": 9,
            "recomputed_tokens": 1,
        }
        return {"rag_accel": said}

    def _whole(
        self, body: dict[str, Any], kind: str, choice: dict[str, Any], usage: dict[str, Any]
    ) -> web.Response:
        head = {"id": "c", "object": kind, "created": 1, "model": "tiny"}
        prompts = body.get("prompt")
        count = len(prompts) if isinstance(prompts, list) and isinstance(prompts[0], str) else 1
        choices = [{**choice, "index": at} for at in range(count)]
        found = {**head, "choices": choices, "usage": usage}
        if self.owner == "vllm":
            said = found["kv_transfer_params"] = self._said(body)
            if said is not None:
                usage["prompt_tokens_details"]["cached_tokens"] = said["rag_accel"]["reused_tokens"]
        return web.json_response(found)

    async def _stream(
        self, request: web.Request, body: dict[str, Any], kind: str, usage: dict[str, Any]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        head = {"id": "c", "object": kind, "created": 1, "model": "tiny"}
        for number, word in enumerate(("an", " answer", "")):
            end = "stop" if number == 2 else None
            piece = (
                {"text": word, "logprobs": None}
                if kind == "text_completion"
                else {"delta": {"role": "assistant", "content": word}}
            )
            choice = {"index": 0, **piece, "finish_reason": end}
            await _send(response, {**head, "choices": [choice]})
        if (body.get("stream_options") or {}).get("include_usage"):
            await _send(response, {**head, "choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response


async def _send(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(f"data: {json.dumps(event)}\n\n".encode())


@contextmanager
def chat_servers() -> Iterator[Callable[..., VllmChatServer]]:
    """Give a maker of servers, which end with the block; none is known to the process before."""
    made: list[VllmChatServer] = []

    def make(*args: Any, **kwargs: Any) -> VllmChatServer:
        made.append(VllmChatServer(*args, **kwargs).__enter__())
        return made[-1]

    SERVERS.clear()
    yield make
    for server in made:
        server.close()
    SERVERS.clear()

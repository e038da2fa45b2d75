"""Lists of servers of which one is wrong: its key, its address, its model or its answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from aiohttp import web
from llm_harness import PATIENCE_S
from loopback_server import LoopbackServer

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import Document, Engine
from rag_accel.engines import OpenAICompatibleEngine, RemoteOptions, RemoteRerankEngine
from rag_accel.engines.replicas.pool import EnginePool
from rag_accel.errors import RemoteEngineError
from rag_accel.testing import ManualClock

NUM_REQUESTS = 60
DOCUMENTS = [Document("short", "a"), Document("long", "aaa")]
ONE_TRY = RemoteOptions(max_retries=0)


def refusal(status: int) -> web.Response:
    headers = {"location": "http://127.0.0.1:9/v1"} if status < 400 else {}
    return web.json_response({"error": {"message": "no"}}, status=status, headers=headers)


def answered(results: Any) -> web.Response:
    return web.json_response({"results": results})


REFUSALS: dict[str, Callable[[], web.Response]] = {
    f"HTTP {status}": lambda status=status: refusal(status) for status in (302, 401, 403, 404)
}
BROKEN: dict[str, Callable[[], web.Response]] = {
    "no JSON": lambda: web.Response(text="<html>login</html>", content_type="text/html"),
    "no ranking": lambda: web.json_response({"choices": []}),
    "one result too few": lambda: answered([{"index": 0, "relevance_score": 1.0}]),
    "an index twice": lambda: answered([{"index": 0, "relevance_score": 1.0}] * 2),
    "no number": lambda: answered([{"index": at, "relevance_score": "x"} for at in range(2)]),
}
WRONG = [
    *((kind, name) for kind in ("llm", "reranker") for name in REFUSALS),
    *(("reranker", name) for name in BROKEN),
    ("llm", "no JSON"),
]


class Server(LoopbackServer):
    """A server of chats and rankings that answers wrongly while it has a wrong answer."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: Callable[[], web.Response] | None = None
        self.num_calls = 0

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_post("/v1/chat/completions", self._chat)
        router.add_post("/v1/rerank", self._rank)

    async def _chat(self, request: web.Request) -> web.Response:
        call = await request.json()
        message = {"role": "assistant", "content": call["messages"][-1]["content"]}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return self._said({"id": "c", "object": "chat.completion", "choices": choices})

    async def _rank(self, request: web.Request) -> web.Response:
        documents = json.loads(await request.read())["documents"]
        return self._said(
            {
                "results": [
                    {"index": at, "relevance_score": len(text)} for at, text in enumerate(documents)
                ]
            }
        )

    def _said(self, right: Any) -> web.Response:
        self.num_calls += 1
        return web.json_response(right) if self.wrong is None else self.wrong()


@contextmanager
def served(kind: str) -> Iterator[tuple[list[Server], Accelerator, ManualClock]]:
    """Open an accelerator of three servers, on whose clock no time passes."""
    clock = ManualClock()
    with ExitStack() as stack:
        servers = [stack.enter_context(Server()) for _ in range(3)]
        members: list[Engine] = [
            OpenAICompatibleEngine(server.base_url, "m", options=ONE_TRY)
            if kind == "llm"
            else RemoteRerankEngine(server.base_url, "m", options=ONE_TRY)
            for server in servers
        ]
        names = [server.base_url for server in servers]
        pool = EnginePool(members, names=names, clock=clock)
        yield servers, stack.enter_context(Accelerator(**{kind: pool})), clock


def outcomes(accelerator: Accelerator, kind: str, count: int) -> list[Any]:
    """Return the answers of requests that live at the same time."""
    graph = RAGraph(inputs=["input", "docs"])
    if kind == "llm":
        graph.add_generation("do", "{input}")
    else:
        graph.add_rerank("do", documents="docs", top_n=1)
    graph.add_edge(START, "do").add_edge("do", END)
    handles = [
        accelerator.submit(graph, input=f"q{number}", docs=DOCUMENTS) for number in range(count)
    ]
    found = [handle.result(PATIENCE_S) for handle in handles]
    return found if kind == "llm" else [hit.document.id for (hit,) in found]


def right(kind: str, count: int) -> list[str]:
    return [f"q{number}" for number in range(count)] if kind == "llm" else ["long"] * count


@pytest.mark.cross_product(keep=10)
@pytest.mark.parametrize(("kind", "name"), WRONG, ids=lambda value: value)
def test_a_wrong_server_costs_no_request_and_is_used_again_once_repaired(
    kind: str, name: str
) -> None:
    with served(kind) as (servers, accelerator, clock):
        wrong = servers[0]
        wrong.wrong = {**REFUSALS, **BROKEN}[name]
        found = outcomes(accelerator, kind, NUM_REQUESTS)
        assert found == right(kind, NUM_REQUESTS)
        ((first, *others),) = [part.parts for part in accelerator.health().parts]
        assert first.state == "paused"
        assert name.startswith("HTTP") == (name in first.why)
        assert [part.state for part in others] == ["ready", "ready"]
        num_calls, wrong.wrong = wrong.num_calls, None
        assert outcomes(accelerator, kind, 3) == right(kind, 3)
        assert wrong.num_calls == num_calls
        clock.advance(8.0)
        assert outcomes(accelerator, kind, 3) == right(kind, 3)
        assert wrong.num_calls > num_calls


@pytest.mark.cross_product(keep=6)
@pytest.mark.parametrize("kind", ["llm", "reranker"])
@pytest.mark.parametrize("status", [302, 400, 401, 404, 413, 422])
def test_what_is_wrong_at_every_server_pauses_none(kind: str, status: int) -> None:
    with served(kind) as (servers, accelerator, _):
        for server in servers:
            server.wrong = lambda: refusal(status)
        for _ in range(4):
            with pytest.raises(RemoteEngineError, match=f"HTTP {status}"):
                outcomes(accelerator, kind, 1)
        (engine,) = accelerator.health().parts
        assert [part.state for part in engine.parts] == ["ready"] * 3
        tries = 1 if status in (400, 413, 422) else 2
        assert sum(server.num_calls for server in servers) == 4 * tries

"""Reranking on servers: order, ties, refusals, answers that cannot be right."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import (
    Document,
    EngineRequest,
    PrimitiveKind,
    RerankBatch,
    StepBudget,
    WorkId,
)
from rag_accel.engines import RemoteOptions, RemoteRerankEngine
from rag_accel.errors import EngineError, EngineOutputError, RemoteEngineError
from rag_accel.testing import EngineContract

Answer = Callable[[dict[str, Any]], Any]
NO_RETRIES = RemoteOptions(max_retries=0)


def by_length(call: dict[str, Any]) -> Any:
    scores = [
        {"index": at, "relevance_score": len(text)} for at, text in enumerate(call["documents"])
    ]
    return {"results": sorted(scores, key=lambda one: -one["relevance_score"])}


def engine(answer: Answer = by_length, **more: Any) -> RemoteRerankEngine:
    def handle(request: httpx2.Request) -> httpx2.Response:
        assert request.url.path == "/v1/rerank"
        found = answer(json.loads(request.content))
        if isinstance(found, httpx2.Response):
            return found
        return httpx2.Response(200, json=found)

    transport = httpx2.MockTransport(handle)
    return RemoteRerankEngine("http://h/v1", "m", options=NO_RETRIES, transport=transport, **more)


def work(*texts: str, top_n: int | None = None, id: str = "w") -> EngineRequest:
    documents = tuple(Document(f"d{at}", text) for at, text in enumerate(texts))
    batch = RerankBatch("query", documents, top_n)
    return EngineRequest(WorkId(id), "r", PrimitiveKind.RERANKING, batch)


def outcome(made: RemoteRerankEngine, request: EngineRequest) -> Any:
    """Return the ids in order, or the error."""
    try:
        made.submit([request])
        for _ in range(100):
            for output in made.step(StepBudget(5.0)):
                if output.kind == "error":
                    return output.error
                return [hit.document.id for hit in output.value]
        raise AssertionError("nothing ended")
    finally:
        made.close()


class TestRemoteReranking(EngineContract):
    def make_engine(self) -> RemoteRerankEngine:
        return engine()

    def make_request(self, number: int) -> EngineRequest:
        return work("a", "bb", "ccc" * number, id=f"w{number}")

    def make_bad_request(self) -> EngineRequest:
        return work("a", top_n=-1, id="bad")


def test_documents_come_best_first_and_equal_ones_as_they_were() -> None:
    assert outcome(engine(), work("aa", "b", "cccc", "dd")) == ["d2", "d0", "d3", "d1"]
    assert outcome(engine(), work("aa", "b", "cccc", "dd", top_n=2)) == ["d2", "d0"]
    assert outcome(engine(), work("aa", "b", top_n=0)) == []


def test_no_server_is_asked_of_nothing() -> None:
    assert outcome(engine(lambda call: pytest.fail("asked")), work()) == []


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {"results": [{"index": 0, "relevance_score": 1}]},
        {"results": [{"index": 0, "relevance_score": 1}] * 2},
        {"results": [{"index": at, "relevance_score": None} for at in (0, 1)]},
        {"results": [{"index": str(at), "relevance_score": 1} for at in (0, 1)]},
        {"results": [{"index": at, "relevance_score": True} for at in (0, 1)]},
        {"results": [7, 8]},
        httpx2.Response(200, content=b'{"results": [{"index": 0, "relevance_score": NaN}, 1]}'),
        httpx2.Response(200, content=b"<html>"),
    ],
)
def test_an_answer_that_cannot_be_right_is_an_error(answer: Any) -> None:
    error = outcome(engine(lambda call: answer), work("a", "b"))
    assert isinstance(error, EngineOutputError)
    assert "POST /rerank" in str(error)


def test_a_refusal_is_told_without_the_key() -> None:
    refusing = httpx2.Response(401, json={"error": "no such key my-secret-key"})
    error = outcome(engine(lambda call: refusing, api_key="my-secret-key"), work("a"))
    assert isinstance(error, RemoteEngineError)
    assert error.status == 401
    assert "my-secret-key" not in str(error)


def test_work_of_another_kind_is_refused() -> None:
    request = EngineRequest(WorkId("w"), "r", PrimitiveKind.RERANKING, 7)
    assert isinstance(outcome(engine(), request), EngineError)


def test_several_servers_serve_a_stage() -> None:
    down = engine(lambda call: httpx2.Response(503))
    graph = RAGraph(inputs=["input", "docs"]).add_rerank("best", documents="docs", top_n=1)
    graph.add_edge(START, "best").add_edge("best", END)
    documents = [Document("short", "a"), Document("long", "aaa")]
    with Accelerator(reranker=[down, engine()]) as accelerator:
        for _ in range(3):
            (hit,) = accelerator.run(graph, input="q", docs=documents)
            assert hit.document.id == "long"

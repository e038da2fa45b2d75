"""One program while a member of its embedder is away for a while and its graph is edited."""

from __future__ import annotations

from typing import Any

from accel_harness import PATIENCE_S, opened
from fake_members import FakeMember

from rag_accel import END, START, Accelerator, RAGraph, RemoteEngineError
from rag_accel.engine_api import Health
from rag_accel.engines import MemoryGraph
from rag_accel_demo import ExtractiveEngine

TRIPLES = [("Ada", "wrote to", "Charles"), ("Charles", "designed", "the Engine")]


def program() -> RAGraph:
    graph = RAGraph().add_graph_retrieval("facts", link="words")
    graph.add_generation("answer", prompt="Context:\n{facts}\n\nQuestion: {input}")
    return graph.add_edge(START, "facts").add_edge("facts", "answer").add_edge("answer", END)


def members(acc: Accelerator) -> dict[str, Health]:
    (embedder,) = (part for part in acc.health().parts if part.name == "embedder")
    return {part.name: part for part in embedder.parts}


def ask(acc: Accelerator, number: int) -> Any:
    return acc.run(program(), input=f"Who wrote to Charles, {number}?")


def test_a_server_that_was_away_is_asked_again_and_nobody_saw_it_go() -> None:
    away, here = FakeMember("away"), FakeMember("here", max_threads=1)
    graph = MemoryGraph(TRIPLES)
    with opened(embedder=[away, here], graph=graph, llm=ExtractiveEngine()) as acc:
        away.error = RemoteEngineError("no connection")
        for number in range(8):
            graph.add([("Ada", "met", f"guest {number}")])
            assert "Charles" in ask(acc, number)
        assert members(acc)["away"].state == "paused"
        assert acc.health().is_ready
        away.error = None
        away.is_asked.clear()
        assert away.is_asked.wait(PATIENCE_S)
        away.calls.clear()
        for number in range(8, 16):
            assert "Charles" in ask(acc, number)
        assert members(acc)["away"].is_ready
        assert away.calls

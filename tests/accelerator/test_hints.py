"""Documents that a graph's stages have found are hinted at, whoever searched."""

from __future__ import annotations

from typing import Any

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.testing import FakeEngine

TEXTS = ["One text.", "Another text."]


def graph() -> RAGraph:
    made = RAGraph().add_retrieval("find", top_k=2)
    made.add_rerank("rank", documents="find", top_n=1)
    made.add_generation("answer", "{rank} {input}")
    made.add_edge(START, "find").add_edge("find", "rank")
    return made.add_edge("rank", "answer").add_edge("answer", END)


def hinted(engine: FakeEngine) -> list[tuple[str, ...]]:
    return [call.ids for call in engine.calls if call.method == "hint"]


def test_what_a_search_and_a_reranking_found_is_hinted_at_in_turn() -> None:
    llm = FakeEngine()
    parts: dict[str, Any] = {
        "index": lambda query, k: TEXTS,
        "reranker": lambda query, texts: [0.0, 1.0],
    }
    with Accelerator(llm=llm, namespace="tenant", **parts) as accelerator:
        accelerator.run(graph(), input="Which?")
    assert hinted(llm) == [tuple(TEXTS), (TEXTS[1],)]
    assert [call.method for call in llm.calls].index("submit") > 1

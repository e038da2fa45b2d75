"""A retrieval on an index that also ranks by words hands it the text its vector was made of."""

from __future__ import annotations

from typing import Any

import pytest
from accel_harness import WAYS, chain, opened

from rag_accel import RAGraph
from rag_accel.engine_api import (
    Document,
    EngineRequest,
    HybridQuery,
    PrimitiveKind,
    StepBudget,
    WorkId,
)
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec
from rag_accel.engines.retrieval.hybrid.engine import HybridEngine
from rag_accel.testing import FakeEngine, FakeSyncCall, vector_of

WORDS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen")


def index() -> DocumentIndex:
    """Return documents of two words each, whose vectors know nothing of the words."""
    documents = [
        Document(f"{one}-{other}", f"{one} {other}", {"first": one})
        for one in WORDS
        for other in WORDS
    ]
    made = DocumentIndex(IndexSpec(len(vector_of(""))))
    made.add(documents, [vector_of(f"document {n}") for n in range(len(documents))])
    return made


def directly(query: str, k: int, where: Any = None) -> Any:
    """Return what an engine of its own finds."""
    engine = HybridEngine(index())
    payload = HybridQuery(vector_of(query), k, where, text=query)
    engine.submit([EngineRequest(WorkId("w"), "r", PrimitiveKind.SEARCHING, payload)])
    (output,) = engine.step(StepBudget())
    assert output.error is None
    return output.value


def retrieval(query: str = "input", **options: Any) -> RAGraph:
    return chain(lambda g, name: g.add_retrieval(name, query=query, **options))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("passes", ["all", "none"])
@pytest.mark.parametrize("embedder", [FakeEngine, lambda: FakeSyncCall(embed)])
def test_a_graph_finds_what_the_engine_finds(way: str, passes: str, embedder: Any) -> None:
    with opened(embedder=embedder(), index=HybridEngine(index()), passes=passes) as acc:
        found = WAYS[way](acc, retrieval(top_k=6), input="bee fox")
    assert found == directly("bee fox", 6)
    (by_vector,) = index().search(vector_of("bee fox")[None], 6)
    assert [one.document for one in found] != [one.document for one in by_vector]


def embed(texts: list[str]) -> Any:
    return [vector_of(text) for text in texts]


def test_the_text_of_an_earlier_stage_is_searched_and_filters_hold() -> None:
    graph = chain(
        lambda g, name: g.add_generation(name, prompt="elk {input}"),
        lambda g, name: g.add_retrieval(name, query="s0", top_k=3, where={"first": "dog"}),
    )
    with opened(llm=FakeEngine(), embedder=FakeEngine(), index=HybridEngine(index())) as acc:
        found = acc.run(graph, input="hen")
    assert found == directly("reply to: elk hen", 3, {"first": "dog"})


def test_what_is_no_text_is_searched_as_it_stands_in_a_prompt() -> None:
    with opened(embedder=FakeEngine(), index=HybridEngine(index())) as acc:
        assert acc.run(retrieval(), input=["cat", "gnu"]) == directly("cat\ngnu", 5)


def test_a_reduced_query_is_folded_where_user_code_may_run() -> None:
    graph = RAGraph()
    graph.add_function("one", lambda: "cat ", inputs=(), output="query")
    graph.add_function("other", lambda: "gnu", inputs=(), output="query")
    graph.add_reducer("query", lambda left, right: left + right)
    graph.add_retrieval("search", query="query")
    graph.add_edge("START", ["one", "other"]).add_edge(["one", "other"], "search")
    graph.add_edge("search", "END")
    with opened(embedder=FakeEngine(), index=HybridEngine(index())) as acc:
        assert acc.run(graph, input="x") == directly("cat gnu", 5)

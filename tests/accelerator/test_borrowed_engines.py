"""A borrowed callable gets plain arguments, and what it returns is checked like an engine's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from accel_harness import chain, generation_graph, opened

from rag_accel import ConfigError, EngineOutputError, RAGraph
from rag_accel.engine_api import Document, ScoredDocument
from rag_accel.testing import FakeEngine, FakeSyncCall


def search(**options: Any) -> RAGraph:
    return chain(lambda graph, name: graph.add_retrieval(name, **options))


def rerank(**options: Any) -> RAGraph:
    return chain(
        lambda graph, name: graph.add_function(name, lambda _: ["a", "b", "c"], inputs="input"),
        lambda graph, name: graph.add_rerank(name, documents="s0", **options),
    )


def test_a_generation_passes_on_what_its_stage_sets() -> None:
    llm = FakeSyncCall()
    graph = chain(
        lambda g, name: g.add_generation(
            name, prompt="{input}", system="Be brief.", stop=["\n"], max_tokens=5
        )
    )
    with opened(llm=llm) as acc:
        acc.run(graph, input="x")
        acc.run(generation_graph(), input="x")
    assert llm.calls[0].args == ("Be brief.\n\nx",)
    assert llm.calls[0].kwargs == {"stop": ("\n",), "max_tokens": 5}
    assert llm.calls[1].kwargs == {}


def test_a_retrieval_passes_on_its_filter() -> None:
    index = FakeSyncCall(lambda query, k, where=None: [query])
    with opened(index=index) as acc:
        acc.run(search(top_k=3, where={"year": 1932}), input="x")
        acc.run(search(), input="x")
    assert index.calls[0].args == ("x", 3)
    assert index.calls[0].kwargs == {"where": {"year": 1932}}
    assert index.calls[1].kwargs == {}


def test_an_index_may_find_documents_of_three_kinds() -> None:
    plain, scored = Document("d", "text"), ScoredDocument(Document("s", "text"), 0.5)
    with opened(index=lambda query, k: ["words", plain, scored]) as acc:
        assert acc.run(search(), input="x") == (
            ScoredDocument(Document("s0/0", "words"), 0.0),
            ScoredDocument(plain, 0.0),
            scored,
        )


def test_an_index_that_finds_nothing_finds_an_empty_tuple() -> None:
    with opened(index=lambda query, k: []) as acc:
        assert acc.run(search(), input="x") == ()


def test_an_index_that_finds_no_documents_is_named() -> None:
    with (
        opened(index=lambda query, k: [1]) as acc,
        pytest.raises(EngineOutputError, match="no doc"),
    ):
        acc.run(search(), input="x")


def test_a_reranker_orders_and_equal_scores_keep_their_order() -> None:
    with opened(reranker=lambda query, texts: [1.0, 2.0, 1.0]) as acc:
        found = acc.run(rerank(top_n=2), input="x")
        assert [one.document.text for one in found] == ["b", "a"]


@pytest.mark.parametrize("scores", [[1.0], [1.0, float("nan"), 2.0], [[1.0], [2.0], [3.0]]])
def test_scores_that_cannot_be_right_are_refused(scores: Any) -> None:
    with (
        opened(reranker=lambda query, texts: scores) as acc,
        pytest.raises(EngineOutputError, match="cannot be right"),
    ):
        acc.run(rerank(), input="x")


@pytest.mark.parametrize(
    "vectors",
    [[], [1.0, 2.0], [[float("nan")] * 8], [[1.0] * 8] * 2, [[1.0], [1.0, 2.0]], None, "text"],
    ids=["none", "flat", "nan", "two", "ragged", "nothing", "words"],
)
def test_vectors_that_cannot_be_right_are_refused(vectors: Any) -> None:
    with (
        opened(embedder=lambda texts: vectors, index=FakeEngine()) as acc,
        pytest.raises(EngineOutputError, match="cannot be right"),
    ):
        acc.run(search(), input="x")


@pytest.mark.parametrize("vectors", [np.ones((1, 8)), [[1] * 8], [np.ones(8, np.float16)]])
def test_vectors_of_any_number_type_serve(vectors: Any) -> None:
    engine = FakeEngine()
    with opened(embedder=lambda texts: vectors, index=engine) as acc:
        acc.run(search(), input="x")
        ((request,),) = engine.served
        assert request.payload.vector.dtype == np.float32


def test_a_name_can_be_used_once() -> None:
    with opened(llm=FakeEngine()) as acc, pytest.raises(ConfigError, match="twice"):
        acc.add_engine("llm", FakeEngine())

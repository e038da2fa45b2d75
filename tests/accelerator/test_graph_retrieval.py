"""Questions over a knowledge graph, from the graph to the answer, in every way to run them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from accel_harness import WAYS, become_idle, opened

from rag_accel import END, START, Accelerator, GraphError, RAGraph
from rag_accel.engine_api import (
    Document,
    PrimitiveKind,
)
from rag_accel.engines import (
    CallableEmbeddingEngine,
    MemoryGraph,
)
from rag_accel.errors import EngineError, GraphLinkError
from rag_accel.requests import kinds
from rag_accel.testing import FakeAsyncCall, FakeSyncCall
from rag_accel_demo import ExtractiveEngine

Way = Callable[..., Any]
anyhow = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())

TRIPLES = [
    ("Ada Lovelace", "wrote to", "Charles Babbage"),
    ("Charles Babbage", "designed", "the Analytical Engine"),
    ("the Analytical Engine", "was built in", "no century"),
    ("Mary Somerville", "taught", "Ada Lovelace"),
]
QUESTION = "What was designed by the man Ada Lovelace wrote to?"


def embed(texts: Sequence[str]) -> np.ndarray:
    """Return vectors that count words: ``[len(texts), 512], float32``."""
    rows = np.zeros((len(texts), 512), np.float32)
    for row, text in zip(rows, texts, strict=True):
        for word in re.findall(r"\w+", text.casefold()):
            row[zlib.crc32(word.encode()) % 512] += 1
    return rows


def embedder() -> CallableEmbeddingEngine:
    return CallableEmbeddingEngine(embed, pure=True)


def only(**options: Any) -> RAGraph:
    """Return a graph that does nothing but find paths."""
    graph = RAGraph().add_graph_retrieval("facts", **{"link": "words", **options})
    return graph.add_edge(START, "facts").add_edge("facts", END)


def answering(**options: Any) -> RAGraph:
    graph = RAGraph().add_graph_retrieval("facts", **{"link": "words", **options})
    graph.add_generation("answer", prompt="Context:\n{facts}\n\nQuestion: {input}")
    return graph.add_edge(START, "facts").add_edge("facts", "answer").add_edge("answer", END)


def texts(hits: Any) -> list[str]:
    return [hit.document.text for hit in hits]


@anyhow
def test_a_question_is_answered_from_the_paths_of_a_graph(way: Way) -> None:
    graph = MemoryGraph(TRIPLES)
    with opened(graph=graph, embedder=embedder(), llm=ExtractiveEngine()) as acc:
        assert "designed -> the Analytical Engine" in way(acc, answering(), input=QUESTION)


def test_an_ingestion_of_entities_makes_their_vectors() -> None:
    graph = MemoryGraph(TRIPLES)
    fill = RAGraph(inputs="entities").add_ingestion("fill", documents="entities", engine="graph")
    fill.add_edge(START, "fill").add_edge("fill", END)
    with opened(graph=graph, embedder=embedder()) as acc:
        acc.run(fill, entities=graph.unembedded())
        hits = acc.run(only(link="vector", seeds=1, hops=1), input="Mary Somerville")
    assert graph.unembedded() == ()
    assert texts(hits) == ["Mary Somerville -> taught -> Ada Lovelace"]


@pytest.mark.parametrize(
    "written",
    ["Mary Somerville", "nobody, mary somerville\n", ["Mary Somerville"], ("x", "Mary Somerville")],
    ids=str,
)
def test_keywords_name_the_entities(written: Any) -> None:
    graph = RAGraph()
    graph.add_function("keys", lambda text: written, inputs="input")
    graph.add_graph_retrieval("facts", keywords="keys", hops=1)
    graph.add_edge(START, "keys").add_edge("keys", "facts").add_edge("facts", END)
    with opened(graph=MemoryGraph(TRIPLES), embedder=embedder()) as acc:
        assert texts(acc.run(graph, input="x")) == ["Mary Somerville -> taught -> Ada Lovelace"]


def test_a_graph_without_vectors_is_a_named_error_of_that_request_alone() -> None:
    with opened(graph=MemoryGraph(TRIPLES), embedder=embedder()) as acc:
        with pytest.raises(GraphLinkError, match="no vectors"):
            acc.run(only(link="vector"), input=QUESTION)
        assert acc.run(only(), input=QUESTION)


@pytest.mark.parametrize(
    ("option", "value"),
    [("top_k", -1), ("hops", True), ("seeds", 1.5), ("link", "guess"), ("direction", "up")],
)
def test_an_option_out_of_range_is_a_named_error(option: str, value: Any) -> None:
    with pytest.raises(GraphError) as caught:
        only(**{option: value})
    assert str(caught.value.where).startswith(option)


def test_a_graph_of_entities_cannot_serve_as_an_index() -> None:
    graph = RAGraph().add_graph_retrieval("facts", engine="index", link="words")
    graph.add_edge(START, "facts").add_edge("facts", END)
    with opened(index=ExtractiveEngine(), embedder=embedder()) as acc:
        with pytest.raises(GraphError) as caught:
            acc.run(graph, input="x")
        assert "needs SEARCHING" in str(caught.value)


@pytest.mark.parametrize("call", [FakeSyncCall, FakeAsyncCall])
def test_a_callable_stands_in_for_the_whole_stage(call: Any) -> None:
    asked: list[Any] = []

    def find(query: str, k: int) -> list[Document]:
        asked.append((query, k))
        return [Document("1", "Ada -> knows -> Charles")]

    with opened(graph=call(find)) as acc:
        assert texts(acc.run(only(top_k=7), input="who?")) == ["Ada -> knows -> Charles"]
    assert asked == [("who?", 7)]


def test_what_a_stage_becomes_is_numbered_and_has_attributes_of_its_own() -> None:
    with opened(graph=MemoryGraph(), embedder=embedder()) as acc:
        lines = acc.explain(only(hops=2, seeds=4, top_k=6, relations=["r"]), "p-graph").splitlines()
    told = [line.strip() for line in lines if line.startswith("  facts.")]
    assert [line.split(":")[0] for line in told] == [
        "facts.embedding.query",
        "facts.searching",
        "facts.expanding.1",
        "facts.expanding.2",
        "facts.embedding.paths",
        "facts.pruning",
    ]
    assert 'link="words" top_k=4' in told[1]
    assert 'relations=["r"]' in told[2]
    assert "top_k=6" in told[5]
    assert "PRUNING@graph(facts.vector, facts.paths.2, facts.vectors) -> facts" in told[5]


def test_a_kind_without_a_row_is_an_error_instead_of_a_completion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = {kind: row for kind, row in kinds.WORK.items() if kind is not PrimitiveKind.EXPANDING}
    monkeypatch.setattr(kinds, "WORK", rows)
    with Accelerator(graph=MemoryGraph(TRIPLES), embedder=embedder()) as acc:
        with pytest.raises(EngineError, match="nothing says how this kind"):
            acc.run(only(), input=QUESTION)
        become_idle(acc)


def test_every_kind_has_its_row() -> None:
    assert set(kinds.WORK) == set(PrimitiveKind)

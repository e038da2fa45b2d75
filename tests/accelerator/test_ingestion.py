"""A stage that ingests embeds all it gets, is found by what runs after it, and fails by name."""

from __future__ import annotations

from typing import Any

import pytest
from accel_harness import PATIENCE_S

from rag_accel import Accelerator, RAGraph
from rag_accel.engine_api import Document, ScoredDocument
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec
from rag_accel.errors import DocumentError, EngineOutputError, GraphError
from rag_accel.testing import FakeEngine
from rag_accel.testing.compute import DIM

DOCUMENTS = [Document("a", "one"), ScoredDocument(Document("b", "two"), 0.5)]


def ingesting(**options: Any) -> RAGraph:
    graph = RAGraph(inputs=["input", "documents"])
    graph.add_ingestion("ingest", documents="documents", output="ids", **options)
    graph.add_retrieval("search", top_k=5, output="docs")
    return graph.add_edge("START", "ingest").add_edge("ingest", "search").add_edge("search", "END")


def ran(index: Any, documents: Any, embedder: Any = None, **options: Any) -> Any:
    with Accelerator(index=index, embedder=embedder or FakeEngine()) as accelerator:
        return accelerator.submit(
            ingesting(**options), input="one", documents=documents, outputs=("ids", "docs")
        ).result(PATIENCE_S)


def test_its_output_is_the_ids_and_later_searches_find_the_documents() -> None:
    found = ran(DocumentIndex(IndexSpec(DIM)), DOCUMENTS)
    assert found["ids"] == ("a", "b")
    assert [one.document.id for one in found["docs"]] == ["a", "b"]


def test_a_text_is_refused_because_it_has_no_id() -> None:
    with pytest.raises(DocumentError, match="only documents can be kept") as caught:
        ran(DocumentIndex(IndexSpec(DIM)), ["one"])
    assert caught.value.where == "ingest"


@pytest.mark.parametrize("documents", [iter(DOCUMENTS), Document("a", "one"), "one", 5])
def test_what_could_be_read_only_once_is_refused_and_not_lost(documents: Any) -> None:
    index = DocumentIndex(IndexSpec(DIM))
    with pytest.raises(DocumentError, match="read twice"):
        ran(index, documents)
    assert len(index) == 0


def test_a_callable_cannot_take_documents() -> None:
    with pytest.raises(GraphError) as caught:
        ran(lambda query, k: [], DOCUMENTS)
    assert any("needs INGESTION" in one for one in caught.value.offenders)


def test_too_few_vectors_are_an_error_and_nothing_is_taken() -> None:
    index = DocumentIndex(IndexSpec(DIM))
    with pytest.raises(EngineOutputError):
        ran(index, DOCUMENTS, embedder=lambda texts: [[1.0] * DIM])
    assert len(index) == 0


def test_documents_in_fields_that_were_unknown_can_be_filtered_afterwards() -> None:
    index = DocumentIndex(IndexSpec(DIM))
    index.add([Document("old", "old", {"x": 1})], [[1.0] * DIM])
    graph = RAGraph(inputs=["input", "documents"])
    graph.add_ingestion("ingest", documents="documents", output="ids")
    graph.add_retrieval("search", where={"y": 2}, output="docs")
    graph.add_edge("START", "ingest").add_edge("ingest", "search").add_edge("search", "END")
    with Accelerator(index=index, embedder=FakeEngine()) as accelerator:
        docs = accelerator.run(graph, input="?", documents=[Document("new", "new", {"y": 2})])
    assert [one.document.id for one in docs] == ["new"]


async def embed_none(texts: list[str]) -> Any:
    raise AssertionError("there is nothing to embed")


@pytest.mark.parametrize("embedder", [FakeEngine(), embed_none, lambda texts: 1 / len(texts)])
def test_no_documents_need_no_embedder(embedder: Any) -> None:
    index = DocumentIndex(IndexSpec(DIM))
    graph = RAGraph(inputs=["documents"])
    graph.add_ingestion("ingest", documents="documents", output="ids")
    graph.add_edge("START", "ingest").add_edge("ingest", "END")
    with Accelerator(index=index, embedder=embedder) as accelerator:
        assert accelerator.run(graph, documents=[]) == ()

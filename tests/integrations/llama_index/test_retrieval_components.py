"""Programs over hybrid stores and graph retrievers find the same in every way they are run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("faiss")

from graph_facts import QUESTION, TRIPLES, facts
from li_knowledge import WordEmbedding
from li_programs import EchoLLM, HashEmbedding, run_in_loop
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.retrievers import QueryFusionRetriever
from llama_index.core.schema import NodeWithScore, TextNode

from llama_index_rag_accel import (
    RagAccelGraphRetriever,
    RagAccelRetriever,
    RagAccelVectorStore,
    accelerate,
    activate,
)
from rag_accel import Accelerator

Shown = list[tuple[str, str, float | None]]


def _nodes() -> list[TextNode]:
    """Return a node for each fact, whose vectors know nothing of the words."""
    return [TextNode(id_=f"n{at}", text=" ".join(fact)) for at, fact in enumerate(TRIPLES)]


def _of_index() -> Any:
    """Return an index's retriever in hybrid mode."""
    context = StorageContext.from_defaults(vector_store=RagAccelVectorStore())
    index = VectorStoreIndex(_nodes(), storage_context=context, embed_model=HashEmbedding())
    return index.as_retriever(similarity_top_k=3, vector_store_query_mode="hybrid", alpha=0.3)


def _of_store() -> Any:
    """Return a retriever of ours in hybrid mode."""
    store, model = RagAccelVectorStore(), HashEmbedding()
    store.add(model(_nodes()))
    return RagAccelRetriever(
        store, model, similarity_top_k=3, vector_store_query_mode="hybrid", alpha=0.3
    )


def _of_graph() -> Any:
    return RagAccelGraphRetriever(facts(), WordEmbedding(), similarity_top_k=3)


def _of_words() -> Any:
    return RagAccelGraphRetriever(facts(), WordEmbedding(), similarity_top_k=3, link="words")


#: retrievers, and how the engine is called that they must have used
RETRIEVERS: dict[str, tuple[Callable[[], Any], str]] = {
    "index": (_of_index, "hybrid#"),
    "store": (_of_store, "hybrid#"),
    "graph": (_of_graph, "graph#"),
    "graph by words": (_of_words, "graph#"),
}


def _fusion(retriever: Any) -> QueryFusionRetriever:
    return QueryFusionRetriever(
        [retriever, retriever],
        llm=EchoLLM(),
        num_queries=2,
        similarity_top_k=4,
        mode="reciprocal_rerank",  # type: ignore[arg-type]
        use_async=False,
    )


#: programs over a retriever, and the methods that ask them
PROGRAMS: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "retriever": (lambda retriever: retriever, "retrieve", "aretrieve"),
    "query engine": (
        lambda retriever: RetrieverQueryEngine.from_args(retriever, llm=EchoLLM()),
        "query",
        "aquery",
    ),
    "query engine over fusion": (
        lambda retriever: RetrieverQueryEngine.from_args(_fusion(retriever), llm=EchoLLM()),
        "query",
        "aquery",
    ),
}


@contextmanager
def _plain(program: Any, accelerator: Accelerator) -> Iterator[Any]:
    yield program


@contextmanager
def _accelerated(program: Any, accelerator: Accelerator) -> Iterator[Any]:
    yield accelerate(program, accelerator=accelerator)


@contextmanager
def _activated(program: Any, accelerator: Accelerator) -> Iterator[Any]:
    with activate(accelerator):
        yield program


def ask(program: Any, method: str, is_async: bool) -> tuple[str, Shown]:
    """Return the answer of a program, and the nodes that it found."""
    found = getattr(program, method)(QUESTION)
    if is_async:
        found = run_in_loop(found)
    if isinstance(found, list):
        return "", shown(found)
    return str(found), shown(found.source_nodes)


def shown(found: list[NodeWithScore]) -> Shown:
    return [(one.node_id, one.text, one.score) for one in found]


@pytest.mark.cross_product(keep=8)
@pytest.mark.parametrize("make", RETRIEVERS.values(), ids=RETRIEVERS)
@pytest.mark.parametrize("around", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_program_finds_the_same_in_every_way(
    make: tuple[Callable[[], Any], str],
    around: tuple[Callable[[Any], Any], str, str],
    is_async: bool,
) -> None:
    build, engine = make
    wrap, sync, coroutine = around
    expected = ask(wrap(build()), sync, is_async=False)
    assert expected[1]
    for way in (_plain, _accelerated, _activated):
        with Accelerator(strict=True) as own, way(wrap(build()), own) as program:
            assert ask(program, coroutine if is_async else sync, is_async) == expected
            engines: Any = own.metrics.snapshot().get("engines", {})
            has_worked = any(name.startswith(engine) for name in engines)
            assert has_worked == (way is not _plain)

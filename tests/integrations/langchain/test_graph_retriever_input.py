"""Misuse of the retriever of a knowledge graph's paths is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from graph_facts import CHAIN, QUESTION, TRIPLES, facts
from lc_graphs import WordEmbeddings, retriever, texts

from langchain_rag_accel import RagAccelGraphRetriever
from rag_accel import Accelerator, ConfigError
from rag_accel.engines import MemoryGraph
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec
from rag_accel.errors import GraphLinkError

BAD_GRAPHS = {
    "none": None,
    "triples": TRIPLES,
    "a name": "facts",
    "an index": DocumentIndex(IndexSpec(4)),
    "a callable": lambda query, k: [],
}


@pytest.mark.parametrize("graph", BAD_GRAPHS.values(), ids=BAD_GRAPHS)
def test_what_is_no_knowledge_graph_is_refused_by_name(graph: Any) -> None:
    with pytest.raises(ConfigError, match="MemoryGraph, a BoltGraph or a KnowledgeEngine"):
        RagAccelGraphRetriever(graph=graph, embedding=WordEmbeddings())


def test_a_retriever_without_a_graph_or_embeddings_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="knowledge graph"):
        RagAccelGraphRetriever(embedding=WordEmbeddings())
    for embedding in ({}, {"embedding": None}, {"embedding": "minilm"}):
        with pytest.raises(ConfigError, match="needs embeddings"):
            RagAccelGraphRetriever(graph=facts(), **embedding)


BAD_OPTIONS = [
    ("k", -1),
    ("k", True),
    ("k", 1.5),
    ("hops", "2"),
    ("hops", -1),
    ("seeds", None),
    ("fan_out", 2**64),
    ("max_paths", -5),
    ("link", "hybrid"),
    ("link", ["words"]),
    ("direction", "up"),
    ("relations", 7),
    ("relations", ["r", None]),
    ("top_k", 3),
    ("filter", {"a": 1}),
]


def test_keywords_belong_to_a_question_and_not_to_a_retriever() -> None:
    with pytest.raises(ConfigError, match="each call may also name"):
        retriever(keywords=["Ada Lovelace"])


@pytest.mark.parametrize(("name", "value"), BAD_OPTIONS, ids=str)
async def test_bad_options_are_refused_by_name(
    name: str, value: Any, accelerator: Accelerator
) -> None:
    with pytest.raises(ConfigError, match=name):
        retriever(accelerator, **{name: value})
    good = retriever(accelerator)
    with pytest.raises(ConfigError, match=name) as refused:
        good.invoke(QUESTION, **{name: value})
    assert refused.value.valid
    with pytest.raises(ConfigError, match=name):
        await good.ainvoke(QUESTION, **{name: value})


def test_a_field_that_was_set_badly_is_refused_at_the_next_call(accelerator: Accelerator) -> None:
    made = retriever(accelerator)
    made.hops = -1
    with pytest.raises(ConfigError, match="hops"):
        made.invoke(QUESTION)
    made.hops = 2
    made.graph = None
    with pytest.raises(ConfigError, match="knowledge graph"):
        made.invoke(QUESTION)


async def test_a_graph_without_vectors_says_so(accelerator: Accelerator) -> None:
    made = retriever(accelerator, graph=MemoryGraph(TRIPLES))
    with pytest.raises(GraphLinkError):
        made.invoke(QUESTION)
    with pytest.raises(GraphLinkError):
        await made.ainvoke(QUESTION)
    assert texts(made.invoke(QUESTION, link="words", k=1)) == [CHAIN]
    with pytest.raises(GraphLinkError, match="keywords"):
        made.invoke(QUESTION, keywords=7)


def test_errors_of_the_embeddings_are_the_callers_own(accelerator: Accelerator) -> None:
    class Failing(WordEmbeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            raise error

    error = RuntimeError("no model")
    for link in ("vector", "words"):
        with pytest.raises(RuntimeError) as raised:
            retriever(accelerator, embedding=Failing(), link=link).invoke(QUESTION)
        assert raised.value is error

"""Hybrid searches of the vector store find what a retrieval over a hybrid engine finds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.vectorstores import VectorStore
from langchain_tests.integration_tests import (
    VectorStoreIntegrationTests,
)
from lc_fakes import FakeEmbeddings, vector_of

from langchain_rag_accel import RagAccelVectorStore, accelerate, explain
from rag_accel import END, START, Accelerator, ConfigError, RAGraph
from rag_accel.engines import CallableEmbeddingEngine, HybridEngine
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec, Metric
from rag_accel.engines.retrieval.hybrid.rankings import HybridSpec

WORDS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen")
TEXTS = [f"{one} {other}" for one in WORDS for other in WORDS]
METADATA = [{"first": text[:3], "number": number} for number, text in enumerate(TEXTS)]
SPECS = {
    "default": HybridSpec(),
    "by words": HybridSpec(dense_weight=0, lexical_depth=7),
    "flat": HybridSpec(dense_depth=5, rank_constant=1, lexical_weight=0.5),
}


def store_of(embeddings: Embeddings, **options: Any) -> RagAccelVectorStore:
    return RagAccelVectorStore.from_texts(TEXTS, embeddings, METADATA, ids=TEXTS, **options)


@pytest.fixture
def store(accelerator: Accelerator) -> RagAccelVectorStore:
    return store_of(FakeEmbeddings(), accelerator=accelerator)


def by_stage(store: RagAccelVectorStore, query: str, spec: HybridSpec, **options: Any) -> list[Any]:
    """Return the documents and scores that a retrieval over a hybrid engine finds."""
    assert store.index is not None
    graph = RAGraph().add_retrieval("found", **options)
    graph.add_edge(START, "found").add_edge("found", END)
    embedder = CallableEmbeddingEngine(lambda texts: [vector_of(one) for one in texts], pure=True)
    index = HybridEngine(store.index, spec)
    with Accelerator(index=index, embedder=embedder, strict=True) as accelerator:
        return [(hit.document, hit.score) for hit in accelerator.run(graph, input=query)]


def ids(found: list[Document]) -> list[str | None]:
    return [document.id for document in found]


class TestStandardStore(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, accelerator: Accelerator) -> VectorStore:
        return RagAccelVectorStore(
            self.get_embeddings(), accelerator=accelerator, hybrid=SPECS["flat"]
        )


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("query", ["bee fox", "HEN, hen!", "unknown words", ""])
async def test_it_finds_what_a_retrieval_over_a_hybrid_engine_finds(
    query: str, spec: HybridSpec, accelerator: Accelerator
) -> None:
    store = store_of(FakeEmbeddings(), accelerator=accelerator, hybrid=spec)
    for k, where in ((6, None), (3, {"first": "fox"}), (100, {"first": "bee", "number": 9})):
        expected = by_stage(store, query, spec, top_k=k, where=where)
        found = store.hybrid_search_with_score(query, k=k, filter=where)
        assert ids([one for one, _ in found]) == [one.id for one, _ in expected]
        assert [one for _, one in found] == pytest.approx([one for _, one in expected], abs=1e-6)
        assert await store.ahybrid_search_with_score(query, k=k, filter=where) == found
        documents = [one for one, _ in found]
        assert store.search(query, "hybrid", k=k, filter=where) == documents
        assert await store.asearch(query, "hybrid", k=k, filter=where) == documents
        retriever = store.as_retriever(
            search_type="hybrid", search_kwargs={"k": k, "filter": where}
        )
        assert retriever.invoke(query) == documents
        assert await retriever.ainvoke(query) == documents


async def test_a_call_may_choose_number_and_filter(store: RagAccelVectorStore) -> None:
    retriever = store.as_retriever(search_type="hybrid", search_kwargs={"k": 2}, tags=["mine"])
    assert "mine" in (retriever.tags or [])
    assert len(retriever.invoke("bee")) == 2
    found = await retriever.ainvoke("bee", k=5, filter={"first": "bee"})
    assert {document.metadata["first"] for document in found} == {"bee"}
    assert len(found) == 5
    retriever.search_type = "similarity"
    assert retriever.invoke("bee") == store.similarity_search("bee", k=2)
    for k in (0, -1):
        assert store.search("bee", "hybrid", k=k) == []


async def test_the_other_ways_to_search_stay_as_they_are(store: RagAccelVectorStore) -> None:
    assert store.search("x", "similarity", k=3) == store.similarity_search("x", k=3)
    assert await store.asearch("x", "mmr", k=3) == store.max_marginal_relevance_search("x", k=3)
    assert store.as_retriever(search_type="mmr").search_type == "mmr"
    for wrong in ("words", None, "Hybrid"):
        with pytest.raises(ValueError, match="not allowed"):
            store.search("x", wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="not allowed"):
            await store.asearch("x", wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="not allowed"):
            store.as_retriever(search_type=wrong)


@pytest.mark.parametrize("name", ["fetch_k", "lambda_mult", "score_threshold", "where", "query_"])
async def test_an_argument_that_means_nothing_here_is_refused_by_name(
    name: str, store: RagAccelVectorStore
) -> None:
    wrong: dict[str, Any] = {name: 0.5}
    with pytest.raises(ConfigError, match=name) as refused:
        store.search("x", "hybrid", **wrong)
    assert refused.value.valid == "filter, k, nprobe"
    with pytest.raises(ConfigError, match=name):
        await store.asearch("x", "hybrid", **wrong)
    with pytest.raises(ConfigError, match=name):
        store.as_retriever(search_type="hybrid", search_kwargs=wrong)
    with pytest.raises(ConfigError, match=name):
        store.as_retriever(search_type="hybrid").invoke("x", **wrong)


BAD_VALUES = [("k", 1.5), ("k", "4"), ("k", 10_000), ("filter", "first"), ("nprobe", 0)]


@pytest.mark.parametrize(("name", "value"), BAD_VALUES, ids=str)
async def test_bad_values_are_refused_by_name(
    name: str, value: Any, store: RagAccelVectorStore
) -> None:
    with pytest.raises(ConfigError):
        store.search("x", "hybrid", **{name: value})
    with pytest.raises(ConfigError):
        await store.asearch("x", "hybrid", **{name: value})


def test_what_is_no_specification_is_refused() -> None:
    for wrong in (True, "bm25", {"dense_weight": 1}):
        with pytest.raises(ConfigError, match="HybridSpec"):
            RagAccelVectorStore(FakeEmbeddings(), hybrid=wrong)  # type: ignore[arg-type]


async def test_a_score_is_higher_for_the_better_whatever_the_metric(
    accelerator: Accelerator,
) -> None:
    index = DocumentIndex(IndexSpec(4, metric=Metric.L2))
    store = store_of(FakeEmbeddings(), index=index, normalize=False, accelerator=accelerator)
    scores = [score for _, score in store.hybrid_search_with_score("bee fox", k=9)]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > 0


async def test_a_cancelled_caller_leaves_the_others_their_documents(
    store: RagAccelVectorStore,
) -> None:
    expected = store.search("bee", "hybrid")
    callers = [asyncio.create_task(store.asearch("bee", "hybrid")) for _ in range(8)]
    await asyncio.sleep(0)
    callers[3].cancel()
    found = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(found.pop(3), asyncio.CancelledError)
    assert found == [expected] * 7


def test_two_tenants_search_one_store_on_engines_of_their_own() -> None:
    store = store_of(FakeEmbeddings())
    with Accelerator(namespace="x", strict=True) as mine, Accelerator(namespace="y") as theirs:
        found = [store.scheduled_by(one).search("bee", "hybrid") for one in (mine, theirs)]
        assert found[0] == found[1]


def test_an_explanation_names_the_engines(store: RagAccelVectorStore) -> None:
    accelerator = store._accelerator
    assert accelerator is not None
    fast = accelerate(store.as_retriever(search_type="hybrid"), accelerator=accelerator)
    assert "engine of its own, made with the first of them, for hybrid ones" in explain(fast)
    fast.invoke("x")
    store.similarity_search("x")
    (line,) = [line for line in explain(fast).splitlines() if "RagAccelVectorStore" in line]
    engines: Any = accelerator.metrics.snapshot()["engines"]
    (alone,) = [name for name in engines if name.startswith("retrieval")]
    (hybrid,) = [name for name in engines if name.startswith("hybrid")]
    assert f"engine {alone}, for searches by vector; engine {hybrid}, for hybrid ones;" in line


def test_explain_says_what_is_hot() -> None:
    spec = IndexSpec(2, kind="ivf", train_size=4, num_clusters=2, hot="cpu")
    store = RagAccelVectorStore(DeterministicFakeEmbedding(size=2), index=DocumentIndex(spec))
    store.add_texts(["a", "b", "c", "d", "e"])
    assert "callers share their steps; hot clusters on cpu: 0% of reads" in explain(store)

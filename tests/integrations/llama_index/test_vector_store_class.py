"""A store of ours answers as ``SimpleVectorStore`` does, in steps that concurrent queries share."""

from __future__ import annotations

import asyncio
import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from li_programs import EchoLLM, HashEmbedding, run_in_loop
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.schema import (
    BaseNode,
    ImageNode,
    IndexNode,
    NodeRelationship,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)

from llama_index_rag_accel import RagAccelRetriever, RagAccelVectorStore, accelerate
from rag_accel import Accelerator, ConfigError
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec, Metric
from rag_accel.errors import IndexFileError

pytest.importorskip("faiss")


COUNT, DIMENSION = 60, 16
COLORS = ("red", "green", "blue")


def nodes(count: int = COUNT, seed: int = 7) -> list[BaseNode]:
    """Return nodes of four sources with random vectors."""
    random = np.random.default_rng(seed)
    made: list[BaseNode] = []
    for number in range(count):
        metadata: dict[str, Any] = {
            "color": COLORS[number % 3],
            "number": number,
            "tags": [f"t{number % 4}", "all"],
        }
        if number % 5 == 0:
            metadata["fifth"] = "yes"
        source = RelatedNodeInfo(node_id=f"source{number % 4}")
        node = TextNode(id_=f"n{number}", text=f"text {number}", metadata=metadata)
        node.relationships[NodeRelationship.SOURCE] = source
        node.embedding = random.normal(size=DIMENSION).tolist()
        made.append(node)
    return made


def question(seed: int = 1) -> list[float]:
    """Return a random vector."""
    return np.random.default_rng(seed).normal(size=DIMENSION).tolist()


@pytest.fixture
def stores(accelerator: Accelerator) -> tuple[RagAccelVectorStore, SimpleVectorStore]:
    """Give both stores with the same nodes."""
    made = RagAccelVectorStore(accelerator=accelerator), SimpleVectorStore()
    for store in made:
        store.add(nodes())
    return made


def ask(store: Any, way: str = "query", **arguments: Any) -> tuple[list[str], list[float]]:
    """Return ids and scores of a query."""
    given = {"query_embedding": question(), "similarity_top_k": 7, **arguments}
    result = getattr(store, way)(VectorStoreQuery(**given))
    found = run_in_loop(result) if asyncio.iscoroutine(result) else result
    return list(found.ids or []), list(found.similarities or [])


def assert_same(found: tuple[list[str], list[float]], expected: tuple[list[str], Any]) -> None:
    """Check that two stores found the same in the same order."""
    assert found[0] == expected[0]
    assert np.allclose(found[1], expected[1], atol=1e-6)


def only(key: str, value: Any, operator: FilterOperator = FilterOperator.EQ) -> MetadataFilters:
    """Return one filter."""
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])


def both(condition: FilterCondition) -> MetadataFilters:
    """Return two filters on color and number."""
    return MetadataFilters(
        filters=[
            MetadataFilter(key="color", value="red"),
            MetadataFilter(key="number", value=30, operator=FilterOperator.LT),
        ],
        condition=condition,
    )


ASKED: dict[str, dict[str, Any]] = {
    "all": {},
    "one": {"similarity_top_k": 1},
    "more than there are": {"similarity_top_k": COUNT + 5},
    "equal": {"filters": only("color", "red")},
    "equal number": {"filters": only("number", 12)},
    "of one source": {"filters": only("ref_doc_id", "source1")},
    "unknown field": {"filters": only("nothing", "red")},
    "not equal": {"filters": only("fifth", "yes", FilterOperator.NE)},
    "greater": {"filters": only("number", 40, FilterOperator.GT)},
    "at least": {"filters": only("number", 40, FilterOperator.GTE)},
    "less": {"filters": only("number", 20, FilterOperator.LT)},
    "at most": {"filters": only("number", 20, FilterOperator.LTE)},
    "in": {"filters": only("color", ["red", "blue"], FilterOperator.IN)},
    "not in": {"filters": only("color", ["red", "blue"], FilterOperator.NIN)},
    "any": {"filters": only("tags", ["t1", "t2"], FilterOperator.ANY)},
    "every": {"filters": only("tags", ["t1", "all"], FilterOperator.ALL)},
    "contains": {"filters": only("tags", "t3", FilterOperator.CONTAINS)},
    "text": {"filters": only("color", "re", FilterOperator.TEXT_MATCH)},
    "text of any case": {"filters": only("color", "RE", FilterOperator.TEXT_MATCH_INSENSITIVE)},
    "empty": {"filters": only("fifth", None, FilterOperator.IS_EMPTY)},
    "and": {"filters": both(FilterCondition.AND)},
    "or": {"filters": both(FilterCondition.OR)},
    "not": {"filters": both(FilterCondition.NOT)},
    "of ids": {"node_ids": ["n3", "n50", "n9", "unknown"]},
    "of ids with a filter": {"node_ids": ["n3", "n50"], "filters": only("color", "red")},
}


@pytest.mark.parametrize("arguments", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("way", ["query", "aquery"])
def test_a_query_finds_what_upstreams_store_finds(
    way: str,
    arguments: dict[str, Any],
    stores: tuple[RagAccelVectorStore, SimpleVectorStore],
) -> None:
    ours, theirs = stores
    assert_same(ask(ours, way, **arguments), ask(theirs, **arguments))


def test_nodes_come_back_whole_but_for_their_vectors(accelerator: Accelerator) -> None:
    store = RagAccelVectorStore(accelerator=accelerator)
    kinds = [
        nodes(1)[0],
        IndexNode(id_="i", text="see", index_id="other", embedding=question()),
        ImageNode(id_="p", text="bridge", image_url="http://x/y.png", embedding=question(2)),
        TextNode(id_="empty", text="", embedding=question(3)),
    ]
    store.add(kinds)
    bare = [node.model_copy(update={"embedding": None}) for node in kinds]
    assert store.get_nodes() == bare
    assert [type(node) for node in store.get_nodes()] == [type(node) for node in kinds]
    assert store.get_nodes(["p", "unknown", "i"]) == [bare[2], bare[1]]
    assert run_in_loop(store.aget_nodes(["p"], only("color", "red"))) == []
    found = store.query(VectorStoreQuery(query_embedding=question(2), similarity_top_k=1))
    assert found.nodes == [bare[2]]


CHANGES: dict[str, Any] = {
    "delete": lambda store: store.delete("source1"),
    "adelete": lambda store: store.adelete("source1"),
    "unknown": lambda store: store.delete("nothing"),
    "delete_nodes": lambda store: store.delete_nodes(["n1", "n2", "unknown"]),
    "filtered": lambda store: store.delete_nodes(filters=only("color", "red")),
    "adelete_nodes": lambda store: store.adelete_nodes(["n1", "n3"], only("color", "red")),
    "replaced": lambda store: store.add(nodes(10, seed=9)),
    "async_add": lambda store: store.async_add(nodes(10, seed=9)),
    "nothing": lambda store: store.add([]),
    "clear": lambda store: store.clear(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_store_finds_what_upstreams_store_finds(
    change: Any, stores: tuple[RagAccelVectorStore, SimpleVectorStore]
) -> None:
    ours, theirs = stores
    results = []
    for store in stores:
        result = change(store)
        results.append(run_in_loop(result) if asyncio.iscoroutine(result) else result)
    assert results[0] == results[1]
    assert_same(ask(ours, similarity_top_k=COUNT), ask(theirs, similarity_top_k=COUNT))


# In programs -----------------------------------------------------------------------------------


def documents() -> list[Document]:
    """Return documents under fixed ids."""
    return [Document(text=f"The bridge number {n}.", id_=f"d{n}") for n in range(8)]


def context(store: Any) -> StorageContext:
    """Return a storage context over a store."""
    return StorageContext.from_defaults(vector_store=store)


@pytest.mark.parametrize("way", ["query", "aquery"])
def test_an_index_over_the_store_answers_as_over_upstreams(
    way: str, accelerator: Accelerator
) -> None:
    shown = []
    for store in (RagAccelVectorStore(), SimpleVectorStore()):
        index = VectorStoreIndex.from_documents(
            documents(), storage_context=context(store), embed_model=HashEmbedding()
        )
        index.delete_ref_doc("d3")
        index.insert(Document(text="The ferry.", id_="f"))
        engine = index.as_query_engine(llm=EchoLLM(), similarity_top_k=3)
        for one in (engine, accelerate(engine, accelerator=accelerator)):
            result = getattr(one, way)("When?")
            answer = run_in_loop(result) if asyncio.iscoroutine(result) else result
            texts = [node.node.get_content() for node in answer.source_nodes]
            shown.append((str(answer), texts, [node.score for node in answer.source_nodes]))
    for answer, texts, scores in shown[1:]:
        assert (answer, texts) == shown[0][:2]
        assert np.allclose(scores, shown[0][2], atol=1e-6)
    engines: Any = accelerator.metrics.snapshot()["engines"]
    assert any(name.startswith("retrieval#") for name in engines)


@pytest.mark.parametrize("way", ["run", "arun"])
def test_a_pipeline_writes_into_the_store(way: str, accelerator: Accelerator) -> None:
    store = RagAccelVectorStore(accelerator=accelerator)
    pipe = IngestionPipeline(transformations=[HashEmbedding()], vector_store=store)
    result = getattr(pipe, way)(documents=documents())
    if asyncio.iscoroutine(result):
        run_in_loop(result)
    assert sorted(node.get_content() for node in store.get_nodes()) == sorted(
        document.text for document in documents()
    )


def test_a_retriever_needs_a_store_of_nodes() -> None:
    with pytest.raises(ConfigError, match="keeps no nodes"):
        RagAccelRetriever(SimpleVectorStore(), HashEmbedding())


# Kept and copied -------------------------------------------------------------------------------


def test_a_persisted_store_answers_as_before(
    stores: tuple[RagAccelVectorStore, SimpleVectorStore], tmp_path: Path
) -> None:
    ours, _ = stores
    path = str(tmp_path / "folder" / "store")
    ours.persist(path)
    loaded = RagAccelVectorStore.from_persist_path(path)
    assert ask(loaded) == ask(ours)
    assert loaded.get_nodes() == ours.get_nodes()


def test_a_storage_context_persists_the_store(tmp_path: Path) -> None:
    store = RagAccelVectorStore()
    index = VectorStoreIndex.from_documents(
        documents(), storage_context=context(store), embed_model=HashEmbedding()
    )
    index.storage_context.persist(str(tmp_path))
    loaded = RagAccelVectorStore.from_persist_dir(str(tmp_path))
    assert loaded.get_nodes() == store.get_nodes()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_text("{}")
    with pytest.raises(IndexFileError):
        RagAccelVectorStore.from_persist_path(str(path))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_deep_copy_is_a_store_of_its_own(copied: Any) -> None:
    store = RagAccelVectorStore()
    store.add(nodes(5))
    made = copied(store)
    made.delete_nodes(["n0"])
    assert len(store.get_nodes()) == 5
    assert ask(made)[0] == [id for id in ask(store)[0] if id != "n0"]


# What it refuses -------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["query", "aquery"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"mode": VectorStoreQueryMode.SPARSE}, "mode"),
        ({"mode": VectorStoreQueryMode.MMR}, "mode"),
        ({"query_embedding": None}, "without a vector"),
        ({"query_embedding": [1.0, 2.0]}, "shape"),
        ({"query_embedding": [1.0, 2.0], "node_ids": ["n1"]}, "shape"),
        ({"filters": MetadataFilters(filters=[only("a", "b")])}, "nested"),
    ],
)
def test_a_query_that_it_cannot_answer_is_refused(
    way: str,
    arguments: dict[str, Any],
    said: str,
    stores: tuple[RagAccelVectorStore, SimpleVectorStore],
) -> None:
    with pytest.raises(ConfigError, match=said):
        ask(stores[0], way, **arguments)


def test_an_operator_it_does_not_know_is_refused(
    stores: tuple[RagAccelVectorStore, SimpleVectorStore],
) -> None:
    strange = only("color", "red")
    object.__setattr__(strange.filters[0], "operator", "~")
    with pytest.raises(ConfigError, match="operator"):
        ask(stores[0], filters=strange)
    with pytest.raises(ConfigError, match="operator"):
        stores[0].delete_nodes(filters=strange)


def test_an_index_of_distances_is_refused() -> None:
    with pytest.raises(ConfigError, match="inner product"):
        RagAccelVectorStore(DocumentIndex(IndexSpec(3, metric=Metric.L2)))

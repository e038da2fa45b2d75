"""A store of ours in hybrid mode finds what a retrieval over a hybrid engine finds."""

from __future__ import annotations

import asyncio
import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
from li_programs import HashEmbedding, run_in_loop
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import (
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)

from llama_index_rag_accel import RagAccelRetriever, RagAccelVectorStore, accelerate, explain
from rag_accel import END, START, Accelerator, ConfigError, RAGraph
from rag_accel.engines import CallableEmbeddingEngine, HybridEngine, HybridSpec
from rag_accel.engines.retrieval.hybrid.lexical import LexicalSnapshot

pytest.importorskip("faiss")


HYBRID = VectorStoreQueryMode.HYBRID
WORDS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen")
QUESTION = "Which bee met the fox?"
WAYS = ["query", "aquery"]


def embedded(id_: str, text: str, **metadata: Any) -> TextNode:
    """Return a node with its vector, of a source that its first letter names."""
    node = TextNode(id_=id_, text=text, metadata=metadata)
    node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=f"source {id_[0]}")
    node.embedding = vector(text)
    return node


def vector(text: str) -> list[float]:
    return HashEmbedding().get_text_embedding(text)


def nodes() -> list[TextNode]:
    """Return nodes of two words each, whose vectors know nothing of the words."""
    return [
        embedded(f"{one}-{other}", f"{one} {other}", first=one, place=place)
        for one in WORDS
        for place, other in enumerate(WORDS)
    ]


@pytest.fixture
def store(accelerator: Accelerator) -> RagAccelVectorStore:
    """Give a store of these nodes."""
    made = RagAccelVectorStore(accelerator=accelerator)
    made.add(nodes())
    return made


def asked(text: str = QUESTION, k: int = 6, **more: Any) -> VectorStoreQuery:
    given = {"similarity_top_k": k, "mode": HYBRID, "query_str": text, **more}
    return VectorStoreQuery(query_embedding=vector(text), **given)


Found = list[tuple[str, float]]


def ask(store: RagAccelVectorStore, way: str = "query", *args: Any, **more: Any) -> Found:
    """Return ids and scores of a hybrid query."""
    result = getattr(store, way)(asked(*args, **more))
    found = run_in_loop(result) if asyncio.iscoroutine(result) else result
    assert [node.node_id for node in found.nodes] == found.ids
    return list(zip(found.ids, found.similarities, strict=True))


def by_stage(
    store: RagAccelVectorStore, spec: HybridSpec, top_k: int = 6, where: Any = None
) -> Found:
    """Return what a retrieval stage finds over a hybrid engine on the same documents."""
    stage = RAGraph().add_retrieval("search", query="input", top_k=top_k, where=where)
    stage.add_edge(START, "search").add_edge("search", END)
    embedder = CallableEmbeddingEngine(lambda texts: [vector(text) for text in texts], pure=True)
    assert store.client is not None
    engine = HybridEngine(store.client, spec)
    with Accelerator(embedder=embedder, index=engine, strict=True) as accelerator:
        hits = accelerator.run(stage, input=QUESTION)
    return [(hit.document.id, hit.score) for hit in hits]


def weighing(alpha: float, **more: Any) -> HybridSpec:
    return HybridSpec(dense_weight=alpha, lexical_weight=1 - alpha, **more)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("alpha", [None, 0, 0.0, 0.2, 0.5, 0.9, 1, 1.0])
def test_a_query_finds_what_a_stage_of_these_weights_finds(
    way: str, alpha: float | None, store: RagAccelVectorStore
) -> None:
    expected = by_stage(store, weighing(0.5 if alpha is None else alpha))
    assert ask(store, way, alpha=alpha) == expected
    assert len(expected) == 6


@pytest.mark.parametrize(
    ("numbers", "found", "spec"),
    [
        ({"k": 3}, 3, {}),
        ({"k": 2, "hybrid_top_k": 9}, 9, {"dense_depth": 9, "lexical_depth": 50}),
        ({"k": 20, "hybrid_top_k": 4}, 4, {"dense_depth": 20}),
        (
            {"k": 20, "hybrid_top_k": 4, "sparse_top_k": 5},
            4,
            {"dense_depth": 20, "lexical_depth": 5},
        ),
        ({"k": 4, "sparse_top_k": 4}, 4, {"lexical_depth": 4}),
        ({"k": 3, "hybrid_top_k": 0}, 0, {}),
        ({"k": 0}, 0, {}),
        ({"k": 80}, 64, {}),
    ],
    ids=str,
)
def test_top_ks_are_numbers_of_results_and_depths(
    numbers: dict[str, Any], found: int, spec: dict[str, Any], store: RagAccelVectorStore
) -> None:
    top_k = numbers.get("hybrid_top_k", numbers["k"])
    expected = by_stage(store, weighing(0.5, **spec), top_k) if top_k else []
    assert ask(store, **numbers) == ask(store, "aquery", **numbers) == expected
    assert len(expected) == found


def only(key: str, value: Any, operator: FilterOperator = FilterOperator.EQ) -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])


@pytest.mark.parametrize("way", WAYS)
def test_filters_hold(way: str, store: RagAccelVectorStore) -> None:
    equal = ask(store, way, filters=only("first", "fox"))
    assert equal == by_stage(store, weighing(0.5), where={"first": "fox"})
    assert equal == ask(store, way, filters=only("first", ["fox"], FilterOperator.IN))
    assert equal == ask(store, way, node_ids=[f"fox-{word}" for word in WORDS])
    foxes = [node for node in nodes() if node.metadata["first"] == "fox"]
    assert len(equal) == 6
    assert {id_ for id_, _ in equal} <= {node.node_id for node in foxes}
    late = ask(store, way, filters=only("place", 5, FilterOperator.GTE), k=64)
    assert {id_ for id_, _ in late} == {n.node_id for n in nodes() if n.metadata["place"] >= 5}
    of_source = ask(store, way, doc_ids=["source f"], alpha=0, k=64)
    assert {id_ for id_, _ in of_source} == {node.node_id for node in foxes}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no text": ({"query_str": None}, "query.query_str.*the text of the question"),
    "no vector": ({"query_embedding": None}, "query.query_embedding"),
    "another dimension": ({"query_embedding": [1.0]}, "wrong shape"),
    "alpha above 1": ({"alpha": 1.5}, r"query.alpha.*1\.5.*from 0 \(words alone\) to 1"),
    "alpha no number": ({"alpha": "half"}, "query.alpha"),
    "too many": ({"similarity_top_k": 1001}, "at most max_depth = 1000"),
    "too deep": ({"sparse_top_k": 5000}, "at most max_depth = 1000"),
    "no number": ({"similarity_top_k": 2.5}, "number of results"),
    "sparse": ({"mode": VectorStoreQueryMode.SPARSE}, "DEFAULT.*HYBRID.*alpha=0"),
    "mmr": ({"mode": VectorStoreQueryMode.MMR}, "DEFAULT.*HYBRID"),
}


@pytest.mark.parametrize(("given", "said"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("among", [None, ["ant-bee"]], ids=["all", "among"])
def test_what_means_nothing_is_refused_by_name(
    way: str, among: Any, given: dict[str, Any], said: str, store: RagAccelVectorStore
) -> None:
    query = asked(node_ids=among)
    for name, value in given.items():
        setattr(query, name, value)
    with pytest.raises(ConfigError, match=said):
        run_in_loop(store.aquery(query)) if way == "aquery" else store.query(query)


def test_a_retriever_refuses_a_mode_that_nobody_knows(store: RagAccelVectorStore) -> None:
    with pytest.raises(ConfigError, match=r"vector_store_query_mode.*'hybird'.*'hybrid'"):
        RagAccelRetriever(store, HashEmbedding(), vector_store_query_mode="hybird")


def test_words_are_ranked_once_for_all_accelerators(
    store: RagAccelVectorStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rag_accel.engines.retrieval.hybrid import lexical

    built: list[Any] = []
    build = lexical._build

    def counted(*args: Any) -> LexicalSnapshot:
        built.append(args)
        return build(*args)

    monkeypatch.setattr(lexical, "_build", counted)
    with Accelerator(strict=True) as other:
        assert ask(store.scheduled_by(other)) == ask(store) == ask(store, node_ids=_all())
    monkeypatch.setenv("RAG_ACCEL", "0")
    assert ask(store) == ask(store, "aquery") == ask(store, node_ids=_all())
    assert len(built) == 1


def _all() -> list[str]:
    return [node.node_id for node in nodes()]


# Kept and explained ----------------------------------------------------------------------------


def test_copies_and_files_answer_as_before(store: RagAccelVectorStore, tmp_path: Path) -> None:
    spec = HybridSpec(lexical_weight=3.0)
    own = RagAccelVectorStore(hybrid=spec)
    own.add(nodes())
    path = str(tmp_path / "store")
    own.persist(path)
    expected = ask(own)
    assert expected != ask(store)
    for made in (
        copy.deepcopy(own),
        pickle.loads(pickle.dumps(own)),
        RagAccelVectorStore.from_persist_path(path, hybrid=spec),
    ):
        assert ask(made) == expected
        made.clear()
        assert ask(made) == []
    assert ask(own) == expected


def test_an_explanation_names_the_store_and_its_engines(accelerator: Accelerator) -> None:
    store = RagAccelVectorStore()
    store.add(nodes())
    retriever = RagAccelRetriever(store, HashEmbedding(), vector_store_query_mode="hybrid")
    fast = accelerate(retriever, accelerator=accelerator)
    assert "engine of its own, made with the first of them, for hybrid ones" in explain(fast)
    fast.retrieve(QUESTION)
    (name,) = [name for name in _engines(accelerator) if name.startswith("hybrid#")]
    (line,) = [line for line in explain(fast).splitlines() if "for hybrid ones" in line]
    assert "RagAccelVectorStore: a component of this library: engine of its own" in line
    assert f"engine {name}, for hybrid ones" in line


def _engines(accelerator: Accelerator) -> list[str]:
    engines: Any = accelerator.metrics.snapshot()["engines"]
    return list(engines)

"""A knowledge engine finds entities, chooses paths, and keeps requests and tenants apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graph_harness import embed, outputs, value, walk, work

from rag_accel.engine_api import (
    Document,
    EngineRequest,
    ExpandBatch,
    IngestBatch,
    LinkQuery,
    PrimitiveKind,
    PruneBatch,
    WorkId,
)
from rag_accel.engines import KnowledgeEngine, MemoryGraph
from rag_accel.errors import ClosedError, EngineError, GraphLinkError
from rag_accel.testing import EngineContract

TRIPLES = [
    ("Ada Lovelace", "wrote to", "Charles Babbage"),
    ("Charles Babbage", "designed", "Analytical Engine"),
    ("Difference Engine", "precedes", "Analytical Engine"),
    ("Charles Babbage", "designed", "Difference Engine"),
]


@pytest.fixture
def engine() -> KnowledgeEngine:
    return KnowledgeEngine(MemoryGraph(TRIPLES))


def found(engine: KnowledgeEngine, query: LinkQuery) -> list[str]:
    paths = value(engine, query)
    return list(paths.view.entity_names(paths.frontier))


def chosen(engine: KnowledgeEngine, question: str, k: int) -> list[tuple[str, float]]:
    paths = value(engine, LinkQuery(9, names=("Charles Babbage",)))
    paths = value(engine, ExpandBatch(value(engine, ExpandBatch(paths))))
    batch = PruneBatch(paths, embed(paths.texts()), embed([question])[0], k)
    return [(hit.path.text, hit.score) for hit in value(engine, batch)]


def test_words_find_the_entity_that_shares_most_of_them(engine: KnowledgeEngine) -> None:
    query = LinkQuery(2, text="Who built the difference engine?")
    assert found(engine, query) == ["Difference Engine", "Analytical Engine"]


def test_words_of_no_name_find_nothing(engine: KnowledgeEngine) -> None:
    assert found(engine, LinkQuery(5, text="?! of")) == []


def test_names_find_entities_in_their_order_whatever_their_case(engine: KnowledgeEngine) -> None:
    names = ("charles babbage", "nobody", "", "Ada Lovelace", "Charles Babbage")
    assert found(engine, LinkQuery(5, names=names)) == ["Charles Babbage", "Ada Lovelace"]


def test_a_vector_finds_the_nearest_entities() -> None:
    graph = MemoryGraph(TRIPLES)
    assert graph.embed(embed) == 4
    (vector,) = embed(["ada lovelace"])
    assert found(KnowledgeEngine(graph), LinkQuery(1, vector=vector)) == ["Ada Lovelace"]


def test_a_search_by_vector_without_vectors_is_a_named_error(engine: KnowledgeEngine) -> None:
    with pytest.raises(GraphLinkError, match="no vectors"):
        value(engine, LinkQuery(1, vector=np.ones(3)))


def test_an_ingestion_keeps_no_vector_of_a_text_that_has_changed_since() -> None:
    graph = MemoryGraph([("a", "r", "b")], {"a": "old"})
    documents = graph.unembedded()
    batch = IngestBatch(documents, embed([one.text for one in documents]))
    graph.add(texts={"a": "new"})
    request = EngineRequest(WorkId("i"), "i", PrimitiveKind.INGESTION, batch)
    assert outputs(KnowledgeEngine(graph), [request])["i"].error is None
    assert [one.text for one in graph.unembedded()] == ["a: new"]


@pytest.mark.parametrize("query", [{"text": "a"}, {"names": ("a",)}, {"vector": np.ones(3)}])
def test_an_empty_graph_finds_nothing(query: dict[str, Any]) -> None:
    assert found(KnowledgeEngine(MemoryGraph()), LinkQuery(3, **query)) == []


def test_no_entities_are_found_for_a_k_of_zero(engine: KnowledgeEngine) -> None:
    assert found(engine, LinkQuery(0, names=("Ada Lovelace",))) == []


def test_the_paths_of_the_highest_cosine_are_chosen(engine: KnowledgeEngine) -> None:
    every = chosen(engine, "designed engine", 99)
    by_hand = sorted(every, key=lambda one: -one[1])
    assert every == by_hand
    assert chosen(engine, "designed engine", 2) == by_hand[:2]
    query, path = embed(["designed engine", every[0][0]])
    cosine = query @ path / np.linalg.norm(query) / np.linalg.norm(path)
    assert every[0][1] == pytest.approx(cosine, abs=1e-6)


def test_equal_scores_keep_the_order_of_the_paths(engine: KnowledgeEngine) -> None:
    paths = value(engine, ExpandBatch(value(engine, LinkQuery(1, names=("Charles Babbage",)))))
    same = np.ones((3, 4), np.float32)
    hits = value(engine, PruneBatch(paths, same, np.ones(4), 2))
    assert [hit.document.text for hit in hits] == list(paths.texts())[:2]


def test_a_vector_of_zeros_scores_zero(engine: KnowledgeEngine) -> None:
    paths = value(engine, ExpandBatch(value(engine, LinkQuery(1, names=("Ada Lovelace",)))))
    (hit,) = value(engine, PruneBatch(paths, np.zeros((1, 4)), np.ones(4), 2))
    assert hit.score == 0.0


def test_no_path_is_chosen_for_a_k_of_zero(engine: KnowledgeEngine) -> None:
    assert chosen(engine, "designed", 0) == []


def test_vectors_that_do_not_fit_the_paths_are_a_named_error(engine: KnowledgeEngine) -> None:
    paths = value(engine, ExpandBatch(value(engine, LinkQuery(1, names=("Ada Lovelace",)))))
    with pytest.raises(EngineError, match="do not fit"):
        value(engine, PruneBatch(paths, np.zeros((7, 4)), np.ones(4), 2))


def test_a_request_under_way_keeps_the_version_it_began_with() -> None:
    graph = MemoryGraph([("a", "r", "b"), ("b", "r", "c")])
    engine = KnowledgeEngine(graph)
    begun = value(engine, ExpandBatch(value(engine, LinkQuery(1, names=("a",)))))
    graph.remove([("b", "r", "c")])
    graph.add([("b", "r", "d"), ("A", "r", "a")])
    assert value(engine, ExpandBatch(begun)).texts()[-1] == "a -> r -> b -> r -> c"
    assert walk(engine, ["a"], 2)[-1] == "a -> r -> b -> r -> d"


def test_requests_of_two_versions_are_answered_in_one_step() -> None:
    graph = MemoryGraph([("a", "r", "b")])
    engine = KnowledgeEngine(graph)
    old = value(engine, LinkQuery(1, names=("a",)))
    graph.add([("a", "s", "c")])
    new = value(engine, LinkQuery(1, names=("a",)))
    got = outputs(engine, [work("old", ExpandBatch(old)), work("new", ExpandBatch(new))])
    assert [len(got[name].value.texts()) for name in ("old", "new")] == [1, 2]


def test_each_tenant_sees_its_own_graph() -> None:
    graphs = {"x": MemoryGraph([("a", "r", "b")]), "y": MemoryGraph([("a", "s", "c")])}
    engine = KnowledgeEngine(graphs)
    links = [work(name, LinkQuery(1, names=("a",)), name) for name in graphs]
    got = outputs(engine, links)
    hops = outputs(engine, [work(name, ExpandBatch(got[name].value), name) for name in graphs])
    texts = {name: hops[name].value.texts() for name in graphs}
    assert texts == {"x": ("a -> r -> b",), "y": ("a -> s -> c",)}


def test_a_tenant_without_a_graph_is_a_named_error() -> None:
    engine = KnowledgeEngine({"x": MemoryGraph([("a", "r", "b")])})
    with pytest.raises(EngineError, match="no knowledge graph"):
        value(engine, LinkQuery(1, names=("a",)), "z")


def test_paths_of_another_tenant_are_refused() -> None:
    engine = KnowledgeEngine(MemoryGraph([("a", "r", "b")]))
    paths = value(engine, LinkQuery(1, names=("a",)), "x")
    with pytest.raises(EngineError, match="another tenant"):
        value(engine, ExpandBatch(paths), "y")


def test_a_closed_graph_fails_new_requests_by_name() -> None:
    graph = MemoryGraph(TRIPLES)
    graph.close()
    with pytest.raises(ClosedError):
        value(KnowledgeEngine(graph), LinkQuery(1, text="Ada"))


def test_one_bad_search_fails_alone() -> None:
    graph = MemoryGraph(TRIPLES)
    graph.embed(embed)
    bad = work("bad", LinkQuery(1, vector=np.ones(3)))
    good = work("good", LinkQuery(1, names=("Ada Lovelace",)))
    got = outputs(KnowledgeEngine(graph), [bad, good])
    assert isinstance(got["bad"].error, GraphLinkError)
    assert got["good"].kind == "final"


@pytest.mark.parametrize(
    "payload",
    [
        LinkQuery(-1, text="a"),
        LinkQuery(True, text="a"),
        LinkQuery(2**70, text="a"),
        LinkQuery(1),
        LinkQuery(1, text="a", names=("a",)),
        ExpandBatch("no paths"),
        PruneBatch(None, None, None, 1),
    ],
    ids=str,
)
def test_malformed_work_is_a_named_error(engine: KnowledgeEngine, payload: Any) -> None:
    with pytest.raises(EngineError):
        value(engine, payload)


def test_an_unknown_direction_is_a_named_error(engine: KnowledgeEngine) -> None:
    paths = value(engine, LinkQuery(1, text="Ada"))
    wrong: Any = "up"
    with pytest.raises(EngineError, match="direction"):
        value(engine, ExpandBatch(paths, direction=wrong))


class TestContract(EngineContract):
    def make_engine(self) -> KnowledgeEngine:
        return KnowledgeEngine(MemoryGraph(TRIPLES))

    def make_request(self, number: int) -> EngineRequest:
        paths = value(self.make_engine(), LinkQuery(9, text="Charles Babbage engine"))
        paths = value(self.make_engine(), ExpandBatch(paths))
        query = embed([f"question {number}"])[0]
        return work(f"work {number}", PruneBatch(paths, embed(paths.texts()), query, 2))

    def make_bad_request(self) -> EngineRequest:
        return work("bad", LinkQuery(-1, text="a"))


def test_a_document_of_a_hit_holds_its_path(engine: KnowledgeEngine) -> None:
    paths = value(engine, ExpandBatch(value(engine, LinkQuery(1, names=("Ada Lovelace",)))))
    (hit,) = value(engine, PruneBatch(paths, np.ones((1, 4)), np.ones(4), 1))
    text = "Ada Lovelace -> wrote to -> Charles Babbage"
    told = {"entities": ("Ada Lovelace", "Charles Babbage"), "relations": ("wrote to",)}
    assert hit.document == Document(text, text, told)

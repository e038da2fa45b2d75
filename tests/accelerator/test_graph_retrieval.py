"""Questions over a knowledge graph, from the graph to the answer, in every way to run them."""

from __future__ import annotations

import asyncio
import re
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from accel_harness import WAYS, Gate, become_idle, opened

from rag_accel import END, START, Accelerator, GraphError, RAGraph
from rag_accel.engine_api import (
    Document,
    EngineBase,
    EngineOutput,
    EngineRequest,
    PrimitiveKind,
    StepBudget,
)
from rag_accel.engines import (
    CallableEmbeddingEngine,
    KnowledgeEngine,
    MemoryGraph,
)
from rag_accel.errors import EngineError, GraphLinkError, RequestCancelledError
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
CHAIN = "Ada Lovelace -> wrote to -> Charles Babbage -> designed -> the Analytical Engine"


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


@anyhow
def test_the_nearest_path_comes_first(way: Way) -> None:
    with opened(graph=MemoryGraph(TRIPLES), embedder=embedder()) as acc:
        hits = way(acc, only(top_k=3), input=QUESTION)
    assert texts(hits)[0] == CHAIN
    assert len(hits) == 3
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_entities_are_found_by_vector() -> None:
    graph = MemoryGraph(TRIPLES)
    graph.embed(embed)
    with opened(graph=graph, embedder=embedder()) as acc:
        hits = acc.run(only(link="vector", seeds=1, hops=1), input="Mary Somerville")
    assert texts(hits) == ["Mary Somerville -> taught -> Ada Lovelace"]


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


def test_keywords_that_an_llm_wrote_name_the_entities() -> None:
    graph = RAGraph()
    graph.add_generation("keys", prompt="Name the people in {input}")
    graph.add_graph_retrieval("facts", keywords="keys", hops=1)
    graph.add_edge(START, "keys").add_edge("keys", "facts").add_edge("facts", END)
    llm = FakeSyncCall(lambda prompt: "Mary Somerville, Nobody")
    with opened(graph=MemoryGraph(TRIPLES), embedder=embedder(), llm=llm) as acc:
        assert texts(acc.run(graph, input="x")) == ["Mary Somerville -> taught -> Ada Lovelace"]


def test_a_keyword_of_a_list_may_hold_separators() -> None:
    odd = "a, b\nc -> 'd'"
    graph = RAGraph()
    graph.add_function("keys", lambda text: [odd], inputs="input")
    graph.add_graph_retrieval("facts", keywords="keys", hops=1)
    graph.add_edge(START, "keys").add_edge("keys", "facts").add_edge("facts", END)
    with opened(graph=MemoryGraph([(odd, "r", "x")]), embedder=embedder()) as acc:
        assert texts(acc.run(graph, input="x")) == [f"{odd} -> r -> x"]


@pytest.mark.parametrize(
    "options", [{"hops": 0}, {"top_k": 0}, {"seeds": 0}, {"fan_out": 0}, {"max_paths": 0}], ids=str
)
def test_a_bound_of_zero_finds_nothing(options: dict[str, int]) -> None:
    with opened(graph=MemoryGraph(TRIPLES), embedder=embedder()) as acc:
        assert acc.run(only(**options), input=QUESTION) == ()


@pytest.mark.parametrize("question", ["", "Zuse?"])
def test_a_question_that_means_no_entity_finds_nothing(question: str) -> None:
    with opened(graph=MemoryGraph(TRIPLES), embedder=embedder()) as acc:
        assert acc.run(only(), input=question) == ()


def test_an_empty_graph_finds_nothing() -> None:
    with opened(graph=MemoryGraph(), embedder=embedder()) as acc:
        assert acc.run(only(), input=QUESTION) == ()


def test_an_answer_without_paths_is_the_readers_own() -> None:
    with opened(graph=MemoryGraph(), embedder=embedder(), llm=ExtractiveEngine()) as acc:
        assert isinstance(acc.run(answering(), input=QUESTION), str)


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


def gated_embedder(gate: Gate) -> CallableEmbeddingEngine:
    """Return an embedder whose calls wait at a gate."""

    def wait_and_embed(texts: list[str]) -> np.ndarray:
        gate()
        return embed(texts)

    return CallableEmbeddingEngine(wait_and_embed, pure=True)


class HeldGraph(EngineBase):
    """A knowledge engine that answers nothing before it has so many searches."""

    def __init__(self, engine: KnowledgeEngine, num: int) -> None:
        self.engine = engine
        self.profile = engine.profile
        self.held: list[EngineRequest] = []
        self.num = num

    def submit(self, work: Sequence[EngineRequest]) -> None:
        if self.num:
            self.held.extend(work)
        else:
            self.engine.submit(work)

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        if len(self.held) < self.num:
            # Something must be told of what is held.
            return [EngineOutput(one.id, "progress") for one in self.held]
        if self.num:
            self.engine.submit(self.held)
            self.num = 0
        return self.engine.step(budget)


def test_sixteen_requests_share_their_hops() -> None:
    engine = KnowledgeEngine(MemoryGraph(TRIPLES))
    questions = [f"{QUESTION} {number}" for number in range(16)]
    with opened(graph=HeldGraph(engine, 16), embedder=embedder()) as acc:
        graph = only(hops=2, top_k=1)
        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(lambda text: acc.run(graph, input=text), questions))
    assert [texts(hits) for hits in found] == [[CHAIN]] * 16
    assert engine.counts["hop_requests"] == 2 * 16
    assert (engine.counts["link_calls"], engine.counts["hop_calls"]) == (1, 2)


def test_many_requests_on_a_loop_find_what_each_finds_alone() -> None:
    questions = [f"{one[0]} {one[1]} {one[2]}?" for one in TRIPLES] * 4
    with opened(graph=MemoryGraph(TRIPLES), embedder=embedder()) as acc:
        alone = [texts(acc.run(only(), input=text)) for text in questions]

        async def together() -> list[Any]:
            return await asyncio.gather(*(acc.arun(only(), input=text) for text in questions))

        assert [texts(hits) for hits in asyncio.run(together())] == alone


def test_the_next_request_sees_an_edit_and_the_one_under_way_does_not() -> None:
    graph, gate = MemoryGraph([("a", "r", "b")]), Gate()
    with gate, opened(graph=graph, embedder=gated_embedder(gate)) as acc:
        # The vectors of paths are waited for, so all hops are over.
        begun = acc.submit(only(hops=1), input="a")
        gate.wait_until_entered()
        graph.remove([("a", "r", "b")])
        graph.add([("a", "s", "c")])
        gate.open()
        begun.result()
        assert texts(acc.run(only(hops=1), input="a")) == ["a -> s -> c"]


def test_edits_while_requests_run_never_mix_versions() -> None:
    """Each relation is alone in its version: a path of two would be of two versions."""
    graph, stop = MemoryGraph([("a", "r0", "b"), ("b", "r0", "c")]), threading.Event()

    def edit() -> None:
        number = 0
        while not stop.is_set():
            graph.replace([("a", f"r{number}", "b"), ("b", f"r{number}", "c")])
            number += 1

    with opened(graph=graph, embedder=embedder()) as acc:
        editor = threading.Thread(target=edit)
        editor.start()
        try:
            hits = [hit for _ in range(30) for hit in acc.run(only(direction="out"), input="a")]
        finally:
            stop.set()
            editor.join()
    assert {len(hit.path.relations) for hit in hits} == {1, 2}
    assert all(len(set(hit.path.relations)) == 1 for hit in hits)


def test_two_tenants_never_see_each_others_paths() -> None:
    engine_of = {
        "x": MemoryGraph([("a", "r", "mine")]),
        "y": MemoryGraph([("a", "r", "theirs")]),
    }
    found: dict[str, list[str]] = {}
    for name in engine_of:
        engine = KnowledgeEngine(engine_of)
        with opened(graph=engine, embedder=embedder(), namespace=name) as acc:
            found[name] = texts(acc.run(only(), input="a"))
    assert found == {"x": ["a -> r -> mine"], "y": ["a -> r -> theirs"]}


def test_a_cancelled_request_leaves_the_others_their_paths() -> None:
    gate = Gate()
    with gate, opened(graph=MemoryGraph(TRIPLES), embedder=gated_embedder(gate)) as acc:
        gone, kept = (acc.submit(only(), input=QUESTION) for _ in range(2))
        gate.wait_until_entered()
        gone.cancel()
        gate.open()
        with pytest.raises(RequestCancelledError):
            gone.result()
        assert texts(kept.result())[0] == CHAIN


def test_paths_that_come_again_are_not_embedded_again() -> None:
    asked: list[str] = []

    def record(texts: list[str]) -> np.ndarray:
        asked.extend(texts)
        return embed(texts)

    engine = CallableEmbeddingEngine(record, pure=True)
    with opened(graph=MemoryGraph(TRIPLES), embedder=engine) as acc:
        first = acc.run(only(), input=QUESTION)
        num = len(asked)
        again = acc.run(only(), input=QUESTION)
    assert again == first
    assert asked[num:] == [QUESTION]


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

"""A stage that runs in slices gives what it gives as a whole, and its user sees no slice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from accel_harness import WAYS, chain, opened
from hypothesis import given
from hypothesis import strategies as st

from rag_accel import END, START, RAGraph
from rag_accel.engine_api import (
    Capability,
    Document,
    EngineProfile,
    PrimitiveKind,
    RerankBatch,
    ScoredDocument,
)
from rag_accel.engines.rerank.engine import Pair, RerankEngine
from rag_accel.errors import EngineOutputError
from rag_accel.graph.growth import InstanceName
from rag_accel.graph.nodes import EngineName
from rag_accel.graph.primitives import Primitive, PrimitiveGraph, PrimitiveName
from rag_accel.graph.prompt import ValueName
from rag_accel.passes.context import PassContext
from rag_accel.passes.decompose_stages import decompose_stages
from rag_accel.requests.sliced_work import SlicedWork
from rag_accel.requests.values import Values
from rag_accel.testing import FAKE_PROFILE, FakeEngine, Faults, compute

BATCH = 16
PROFILE = replace(FAKE_PROFILE, max_batch=BATCH, capabilities=frozenset({Capability.ITEMWISE}))
anyhow = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


class WordReranker(RerankEngine):
    """Score by shared words, at most 16 pairs to a batch."""

    def __init__(self) -> None:
        super().__init__(shared_words, max_batch=BATCH)

    @property
    def profile(self) -> EngineProfile:
        return replace(super().profile, capabilities=frozenset({Capability.ITEMWISE}))


def shared_words(pairs: list[Pair]) -> list[float]:
    return [len(set(query.split()) & set(text.split())) / (1 + len(text)) for query, text in pairs]


def documents(count: int) -> list[Document]:
    words = ("ant", "bee", "cat", "dog", "elk")
    return [Document(f"d{n}", " ".join(words[: n * 7 % 5 + 1])) for n in range(count)]


def merging(count: int, top_n: int | None = 5, found: Any = None, **options: Any) -> RAGraph:
    """Return a graph that reranks ``count`` documents, or ``found``, where 48 are expected."""
    graph = RAGraph()
    for place in range(3):
        graph.add_retrieval(f"find{place}", top_k=16)
    names = [f"find{place}" for place in range(3)]
    graph.add_function("found", found or (lambda *lists: documents(count)), inputs=names)
    graph.add_rerank("best", documents="found", top_n=top_n, **options)
    graph.add_edge(START, names).add_edge(names, "found").add_edge("found", "best")
    return graph.add_edge("best", END)


def expected(count: int, top_n: int | None = 5, query: str = "bee elk") -> Any:
    batch = RerankBatch(query, tuple(documents(count)), top_n)
    scores = shared_words([(query, one.text) for one in batch.documents])
    ranked = sorted(range(count), key=lambda place: -scores[place])
    return tuple(ScoredDocument(batch.documents[n], scores[n]) for n in ranked[:top_n])


@anyhow
@pytest.mark.parametrize("count", [48, 47, 3, 1, 0, 200])
def test_slices_adapt_to_the_documents_there_are(way: Any, count: int) -> None:
    parts = {"embedder": FakeEngine(), "index": FakeEngine(), "reranker": WordReranker()}
    with opened(**parts, passes="all") as acc:
        assert way(acc, merging(count), input="bee elk") == expected(count)
        assert "best.reranking.3: RERANKING" in acc.explain(merging(count), "e-graph")


def test_documents_that_can_be_read_once_are_read_once() -> None:
    given: list[int] = []

    def once(*lists: Any) -> Iterator[Document]:
        for place, one in enumerate(documents(48)):
            given.append(place)
            yield one

    parts = {"embedder": FakeEngine(), "index": FakeEngine(), "reranker": WordReranker()}
    with opened(**parts, passes="all") as acc:
        assert acc.run(merging(48, found=once), input="bee elk") == expected(48)
    assert given == list(range(48))


def test_functions_see_what_stages_wrote_and_no_slice() -> None:
    graph = merging(48)
    graph.add_function("seen", lambda values: sorted(values)).add_edge("best", "seen")
    graph.add_edge("seen", END)
    names = ["best", "find0", "find1", "find2", "found", "input"]
    for passes in ("all", "none"):
        parts = {"embedder": FakeEngine(), "index": FakeEngine(), "passes": passes}
        with opened(**parts, reranker=WordReranker()) as acc:
            assert acc.run(graph, outputs=["seen"], input="bee elk") == {"seen": names}


def test_every_turn_of_a_loop_has_slices_of_its_own() -> None:
    turns: list[Any] = []
    graph = RAGraph()
    graph.add_retrieval("find", query="input", top_k=40, output="docs")
    graph.add_rerank("best", documents="docs", top_n=2)
    graph.add_function("note", turns.append, inputs="best")
    graph.add_edge(START, "find").add_edge("find", "best").add_edge("best", "note")
    graph.add_edge("note", lambda values: "find" if len(turns) < 3 else END, ["find", END])
    parts = {"embedder": FakeEngine(), "index": FakeEngine(), "reranker": FakeEngine(PROFILE)}
    with opened(**parts, passes="all") as acc:
        acc.run(graph, input="text")
    with opened(embedder=FakeEngine(), index=FakeEngine(), reranker=FakeEngine()) as acc:
        plain = acc.run(
            chain(
                lambda g, name: g.add_retrieval(name, top_k=40),
                lambda g, name: g.add_rerank(name, documents="s0", top_n=2),
            ),
            input="text",
        )
    assert turns == [plain] * 3


def test_a_reduced_ranking_is_written_by_the_join() -> None:
    graph = merging(48, output="ranked")
    graph.add_function("more", lambda: (), inputs=(), output="ranked").add_edge(START, "more")
    graph.add_edge("more", END).add_reducer("ranked", lambda left, right: (*left, *right))
    parts = {"embedder": FakeEngine(), "index": FakeEngine(), "reranker": WordReranker()}
    with opened(**parts, passes="all") as acc:
        assert acc.run(graph, input="bee elk") == expected(48)


def test_a_slice_that_fails_fails_the_request_and_no_other() -> None:
    def faults(request: Any) -> Any:
        if request.kind is PrimitiveKind.RERANKING and request.payload.query == "bad":
            return LookupError("bad")
        return None

    engine = FakeEngine(PROFILE, faults=Faults(faults))
    parts = {"embedder": FakeEngine(), "index": FakeEngine(), "reranker": engine}
    with opened(**parts, passes="all") as acc:
        good, bad = (acc.submit(merging(48), input=query) for query in ("good", "bad"))
        assert len(good.result(20)) == 5
        with pytest.raises(LookupError):
            bad.result(20)


@pytest.mark.parametrize("passes", ["all", "default"])
def test_an_engine_that_gives_no_ranking_fails_its_request(passes: str) -> None:
    engine = FakeEngine(PROFILE, compute=lambda payload: [object()])
    parts = {"embedder": FakeEngine(), "index": FakeEngine(), "reranker": engine}
    with opened(**parts, passes=passes) as acc, pytest.raises(EngineOutputError, match="ranking"):
        acc.run(merging(48), input="x")


DOCUMENTS = st.lists(st.text("abc ", max_size=6), max_size=40)


@given(DOCUMENTS, st.integers(2, 9), st.none() | st.integers(1, 50))
def test_slices_of_equal_size_join_to_the_ranking_of_the_whole(
    texts: list[str], count: int, top_n: int | None
) -> None:
    whole = tuple(Document(f"d{n}", text) for n, text in enumerate(texts))
    slices, join = cut(count, top_n)
    values = Values(RAGraph().freeze(), {"input": "a b c", "docs": whole})
    work = SlicedWork(values)
    payloads = [work.payload(one) for one in slices]
    assert tuple(one for payload in payloads for one in payload.documents) == whole
    assert {payload.top_n for payload in payloads} == {None}
    sizes = [len(payload.documents) for payload in payloads]
    assert max(sizes) - min(sizes) <= 1
    for one, payload in zip(slices, payloads, strict=True):
        values.write(one.output or "", one.instance, compute(payload))
    assert work.joined(join) == compute(RerankBatch("a b c", whole, top_n))


def cut(count: int, top_n: int | None) -> tuple[list[Primitive], Primitive]:
    """Return the slices of a reranking and their join."""
    whole = Primitive(
        PrimitiveName("best.reranking"),
        InstanceName("best"),
        PrimitiveKind.RERANKING,
        EngineName("reranker"),
        inputs=(ValueName("input"), ValueName("docs")),
        output=ValueName("best"),
        size=BATCH * count,
        attributes=(("top_n", top_n),) if top_n else (),
    )
    done = decompose_stages(PrimitiveGraph((whole,)), PassContext({"reranker": PROFILE}))
    *slices, join = done.primitives
    assert len(slices) == count
    return slices, join

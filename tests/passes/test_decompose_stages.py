"""Work beyond the largest batch is cut into slices of equal size, and their join takes its name."""

from dataclasses import replace
from pathlib import Path

import pytest
from graph_text import parse_primitives
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.engine_api import (
    BorrowedEngine,
    Capability,
    EngineProfile,
    PrimitiveKind,
)
from rag_accel.graph import END, START, RAGraph
from rag_accel.graph.primitive_text import format_primitives
from rag_accel.graph.spec import verify
from rag_accel.passes.context import PassContext
from rag_accel.passes.decompose import decompose
from rag_accel.passes.decompose_stages import MOST_SLICES, decompose_stages

SEARCHING, DECODING = PrimitiveKind.SEARCHING, PrimitiveKind.DECODING
RERANKING = PrimitiveKind.RERANKING

LISTWISE = EngineProfile(frozenset({RERANKING}), max_batch=16)
ENGINES = {
    "llm": EngineProfile(
        frozenset({DECODING}), max_batch=16, capabilities=frozenset({Capability.ITEMWISE})
    ),
    "index": EngineProfile(
        frozenset({SEARCHING}),
        max_batch=16,
        capabilities=frozenset({Capability.ITEMWISE, Capability.EMBEDS}),
    ),
    "reranker": replace(LISTWISE, capabilities=frozenset({Capability.ITEMWISE})),
    "listwise": LISTWISE,
    "borrowed": BorrowedEngine("borrowed", frozenset({RERANKING})),
}
CONTEXT = PassContext(ENGINES)


def cases():
    path = Path(__file__).parent / "fixtures" / "decompose_stages.txt"
    for case in path.read_text(encoding="utf-8").split("=== ")[1:]:
        title, before, after = case.strip().split("\n--- ")
        before, after = before.removeprefix("before\n"), after.removeprefix("after\n")
        yield pytest.param(before, after, id=title)


@pytest.mark.parametrize(("before", "after"), list(cases()))
def test_stages_are_cut(before, after):
    graph = parse_primitives(before)
    verify(graph, "p-graph", ENGINES)
    cut = decompose_stages(graph, CONTEXT)
    assert sorted(format_primitives(cut).split("\n")) == sorted(after.split("\n"))
    assert cut == parse_primitives(format_primitives(cut))
    verify(cut, "e-graph", ENGINES)
    assert decompose_stages(cut, CONTEXT) is cut


def reranking(size):
    return parse_primitives(
        f"p-graph\nbest.reranking: RERANKING@reranker(input, docs) -> best  depth=0 size={size}"
    )


@given(st.integers(1, 2000))
def test_slices_are_within_the_batch_and_as_large_as_the_whole_together(size):
    cut = decompose_stages(reranking(size), CONTEXT)
    slices = [one for one in cut.primitives if one.kind is RERANKING]
    assert sum(one.size for one in slices) == size
    sizes = {one.size for one in slices}
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= 16 or len(slices) == MOST_SLICES


def test_a_size_unknown_to_the_plan_is_not_cut():
    graph = reranking(1)
    assert decompose_stages(graph, CONTEXT) is graph


def test_documents_that_a_function_merges_count_together():
    g = RAGraph()
    for name in ("a", "b", "c"):
        g.add_retrieval(name, top_k=16)
    g.add_function("merge", lambda a, b, c: [*a, *b, *c], inputs=["a", "b", "c"], output="found")
    g.add_rerank("best", documents="found", top_n=3)
    g.add_edge(START, ["a", "b", "c"]).add_edge(["a", "b", "c"], "merge")
    g.add_edge("merge", "best").add_edge("best", END)
    cut = decompose_stages(decompose(g, ENGINES), CONTEXT)
    slices = [one for one in cut.primitives if one.kind is RERANKING]
    assert [one.size for one in slices] == [16, 16, 16]

"""A reranking of several searches' union is cut into one slice for each search."""

from dataclasses import replace
from pathlib import Path

import pytest
from graph_text import parse_primitives
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.engine_api import (
    Capability,
    Document,
    EngineProfile,
    PrimitiveKind,
    ScoredDocument,
)
from rag_accel.graph.primitive_text import format_primitives
from rag_accel.graph.spec import verify
from rag_accel.passes.context import PassContext
from rag_accel.passes.rerank_by_source import rerank_by_source
from rag_accel.workflows.steps import merged

LISTWISE = EngineProfile(frozenset({PrimitiveKind.RERANKING}))
ENGINES = {
    "index": EngineProfile(frozenset({PrimitiveKind.SEARCHING})),
    "reranker": replace(LISTWISE, capabilities=frozenset({Capability.ITEMWISE})),
    "listwise": LISTWISE,
}
CONTEXT = PassContext(ENGINES)


def cases():
    path = Path(__file__).parent / "fixtures" / "rerank_by_source.txt"
    for case in path.read_text(encoding="utf-8").split("=== ")[1:]:
        title, before, after = case.strip().split("\n--- ")
        before, after = before.removeprefix("before\n"), after.removeprefix("after\n")
        yield pytest.param(before, after, id=title)


@pytest.mark.parametrize(("before", "after"), list(cases()))
def test_rerankings_are_cut(before, after):
    graph = parse_primitives(before, functions={"merged": merged})
    verify(graph, "p-graph", ENGINES)
    cut = rerank_by_source(graph, CONTEXT)
    assert sorted(format_primitives(cut).split("\n")) == sorted(after.split("\n"))
    verify(cut, "e-graph", ENGINES)
    assert rerank_by_source(cut, CONTEXT) is cut
    assert (cut is graph) == (before == after)


def test_what_a_reducer_folds_is_not_cut():
    before = next(case.values[0] for case in cases() if case.values[0] != case.values[1])
    graph = parse_primitives(before, functions={"merged": merged})
    for name in ("found1", "found"):
        assert rerank_by_source(graph, PassContext(ENGINES, reduced=frozenset({name}))) is graph


ids = st.lists(st.sampled_from("abcdef"), max_size=5)


@given(st.lists(ids, min_size=1, max_size=4))
def test_the_union_of_the_workflows_begins_with_that_of_its_first_lists(lists):
    found = [[ScoredDocument(Document(one, one), 1.0) for one in several] for several in lists]
    whole = merged(*found)
    for count in range(1, len(found) + 1):
        first = merged(*found[:count])
        assert whole[: len(first)] == first

"""What is not read need not be waited for; whose order a user could notice keeps it."""

from pathlib import Path

import pytest
from graph_text import parse_primitives

from rag_accel.engine_api import BorrowedEngine, EngineProfile, PrimitiveKind
from rag_accel.graph.primitive_text import format_primitives
from rag_accel.graph.spec import verify
from rag_accel.passes.context import PassContext
from rag_accel.passes.prune_dependencies import prune_dependencies


def owned(*kinds, pure=True):
    return EngineProfile(frozenset(kinds), pure=pure)


SEARCHING, DECODING = PrimitiveKind.SEARCHING, PrimitiveKind.DECODING

ENGINES = {
    "llm": owned(PrimitiveKind.PREFILLING, DECODING),
    "embedder": owned(PrimitiveKind.EMBEDDING),
    "index": owned(SEARCHING, PrimitiveKind.INGESTION),
    "reranker": owned(PrimitiveKind.RERANKING),
    "impure": owned(SEARCHING, pure=False),
    "borrowed": BorrowedEngine("borrowed", frozenset({DECODING}), pure=True),
}
CONTEXT = PassContext(ENGINES, reduced=frozenset({"parts"}))


def cases():
    path = Path(__file__).parent / "fixtures" / "prune_dependencies.txt"
    for case in path.read_text(encoding="utf-8").split("=== ")[1:]:
        title, before, after = case.strip().split("\n--- ")
        before, after = before.removeprefix("before\n"), after.removeprefix("after\n")
        yield pytest.param(before, after, id=title)


@pytest.mark.parametrize(("before", "after"), list(cases()))
def test_waits_are_pruned(before, after):
    graph = parse_primitives(before)
    verify(graph, "p-graph", ENGINES)
    pruned = prune_dependencies(graph, CONTEXT)
    assert sorted(format_primitives(pruned).split("\n")) == sorted(after.split("\n"))
    verify(pruned, "e-graph", ENGINES)
    assert prune_dependencies(pruned, CONTEXT) is pruned


def test_a_graph_without_anything_to_prune_is_the_same_object():
    graph = parse_primitives(
        "p-graph\n"
        "a.searching: SEARCHING@index(input) -> a  depth=1\n"
        "b.decoding: DECODING@llm(a) -> b  after a.searching  depth=0"
    )
    assert prune_dependencies(graph, CONTEXT) is graph


@pytest.mark.parametrize(("pure", "after"), [(True, ()), (False, ("a.searching",))])
def test_an_engine_under_two_names_counts_as_one(pure, after):
    profile = owned(SEARCHING, pure=pure)
    graph = parse_primitives(
        "p-graph\n"
        "a.searching: SEARCHING@one(input) -> a  depth=1\n"
        "b.searching: SEARCHING@other(input) -> b  after a.searching  depth=0"
    )
    pruned = prune_dependencies(graph, PassContext({"one": profile, "other": profile}))
    assert pruned.by_name["b.searching"].after == after


def test_an_engine_that_is_not_known_is_taken_for_the_users():
    graph = parse_primitives(
        "p-graph\n"
        "a.searching: SEARCHING@index(input) -> a  depth=1\n"
        "b.searching: SEARCHING@index(input) -> b  after a.searching  depth=0"
    )
    assert prune_dependencies(graph, PassContext()) is graph

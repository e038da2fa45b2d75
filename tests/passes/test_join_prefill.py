"""A prefilling that no pass has used goes back into its decoding."""

from pathlib import Path

import pytest
from graph_text import parse_primitives

from rag_accel.engine_api import EngineProfile, PrimitiveKind
from rag_accel.graph.primitive_text import format_primitives
from rag_accel.graph.spec import verify
from rag_accel.passes.context import PassContext
from rag_accel.passes.join_prefill import join_prefill

ENGINES = {
    "llm": EngineProfile(
        frozenset(kind for kind in PrimitiveKind if "FILL" in kind or kind == "DECODING")
    ),
    "other": EngineProfile(frozenset({PrimitiveKind.DECODING})),
    "index": EngineProfile(frozenset({PrimitiveKind.SEARCHING})),
}


def named():
    """Stand for a function of the user's."""


def cases():
    path = Path(__file__).parent / "fixtures" / "join_prefill.txt"
    for case in path.read_text(encoding="utf-8").split("=== ")[1:]:
        title, before, after = case.strip().split("\n--- ")
        before, after = before.removeprefix("before\n"), after.removeprefix("after\n")
        yield pytest.param(before, after, id=title)


@pytest.mark.parametrize(("before", "after"), list(cases()))
def test_prefills_are_joined(before, after):
    graph = parse_primitives(before, functions={"named": named})
    verify(graph, "e-graph", ENGINES)
    joined = join_prefill(graph, PassContext(ENGINES))
    assert format_primitives(joined) == after
    verify(joined, "e-graph", ENGINES)
    assert join_prefill(joined, PassContext(ENGINES)) is joined
    assert (joined is graph) == (before == after)

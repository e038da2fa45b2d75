"""Items of a list go on while the list is written; what a user could notice keeps its place."""

from dataclasses import replace
from pathlib import Path

import pytest
from graph_text import parse_primitives

from rag_accel.engine_api import BorrowedEngine, EngineProfile, PrimitiveKind
from rag_accel.graph.primitive_text import format_primitives
from rag_accel.graph.spec import verify
from rag_accel.passes.context import PassContext
from rag_accel.passes.decompose import decompose
from rag_accel.passes.manager import run_passes
from rag_accel.passes.pipeline_decoding import pipeline_decoding
from rag_accel.workflows import advanced_document_qa

EMBEDDING, SEARCHING = PrimitiveKind.EMBEDDING, PrimitiveKind.SEARCHING
PREFILLING, DECODING = PrimitiveKind.PREFILLING, PrimitiveKind.DECODING


def owned(*kinds, max_batch=64, pure=True):
    capabilities = frozenset({"stream"}) if DECODING in kinds else frozenset()
    return EngineProfile(
        frozenset(kinds), max_batch=max_batch, pure=pure, capabilities=capabilities
    )


ENGINES = {
    "llm": owned(PREFILLING, DECODING),
    "embedder": owned(EMBEDDING, max_batch=8),
    "index": owned(SEARCHING, max_batch=4),
    "impure": owned(DECODING, SEARCHING, pure=False),
    "borrowed": BorrowedEngine("borrowed", frozenset({DECODING, SEARCHING}), pure=True),
    "reranker": owned(PrimitiveKind.RERANKING),
}
CONTEXT = PassContext(ENGINES, reduced=frozenset({"parts"}))


def cases():
    path = Path(__file__).parent / "fixtures" / "pipeline_decoding.txt"
    for case in path.read_text(encoding="utf-8").split("=== ")[1:]:
        title, before, after = case.strip().split("\n--- ")
        before, after = before.removeprefix("before\n"), after.removeprefix("after\n")
        yield pytest.param(before, after, id=title)


@pytest.mark.parametrize(("before", "after"), list(cases()))
def test_items_go_on_while_the_list_is_written(before, after):
    graph = parse_primitives(before)
    verify(graph, "p-graph", ENGINES)
    pipelined = pipeline_decoding(graph, CONTEXT)
    assert format_primitives(pipelined).split("\n") == after.split("\n")
    verify(pipelined, "e-graph", ENGINES)
    assert pipeline_decoding(pipelined, CONTEXT) is pipelined


PLAIN = (
    "p-graph\n"
    "expand.decoding: DECODING@llm(input) -> text  depth=3\n"
    "list.function: FUNCTION(text) -> list  after expand.decoding  depth=2 items=1\n"
    "one.function: FUNCTION(list) -> one  after list.function  depth=1 item=0\n"
    "a.searching: SEARCHING@index(one) -> a  after one.function  depth=0"
)


def test_the_plain_graph_is_pipelined():
    assert pipeline_decoding(parse_primitives(PLAIN), CONTEXT).by_name["one.function"].after == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("DECODING@llm", "DECODING@borrowed"),
        ("DECODING@llm", "SEARCHING@index"),
        ("SEARCHING@index", "SEARCHING@borrowed"),
        ("items=1", ""),
        ("item=0", ""),
        ("item=0", "item=-1"),
        ("-> text", "-> other"),
        ("FUNCTION(text)", "FUNCTION(other)"),
        ("FUNCTION(text)", "FUNCTION()"),
        ("FUNCTION(list)", "FUNCTION(list, input)"),
        ("-> one", "-> text"),
        ("-> one", "-> input"),
        ("-> one", "-> parts"),
        ("list", "parts"),
        ("text", "parts"),
        ("(one) -> a", "(one) -> input"),
    ],
)
def test_other_graphs_are_left_alone(old, new):
    graph = parse_primitives(PLAIN.replace(old, new))
    assert pipeline_decoding(graph, CONTEXT) is graph


def test_a_text_that_comes_whole_is_left_alone():
    graph = parse_primitives(PLAIN)
    whole = replace(ENGINES["llm"], capabilities=frozenset())
    assert pipeline_decoding(graph, PassContext(ENGINES | {"llm": whole})) is graph


def test_a_text_with_two_writers_is_left_alone():
    graph = parse_primitives(PLAIN + "\nb.decoding: DECODING@llm(a) -> text  depth=0")
    assert pipeline_decoding(graph, CONTEXT) is graph


def test_all_passes_together_pipeline_the_queries_of_document_qa():
    graph = decompose(advanced_document_qa(lambda chunks: None, num_queries=2), ENGINES)
    plan = run_passes(graph, CONTEXT)
    kinds = {name: one.kind for name, one in plan.graph.by_name.items()}
    assert kinds["query1.function"] is kinds["query2.function"] is PrimitiveKind.PARTIAL_DECODING
    assert plan.graph.by_name["search2.embedding"].after == ("query2.function", "ingest.function")
    (pipelined,) = (change for change in plan.journal if change.by == "pipeline_decoding")
    assert "pipeline_decoding: query1.function is altered" in str(pipelined)
    # Later regions must still be told that the list had ended before a search did.
    assert set(plan.freed["search1.searching"]) == {"expand.decoding", "queries.function"}

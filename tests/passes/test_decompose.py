import operator
from pathlib import Path

import pytest
from graph_text import parse, parse_primitives
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.engine_api import BorrowedEngine, EngineProfile, PrimitiveKind
from rag_accel.errors import GraphError
from rag_accel.graph import END, START, RAGraph
from rag_accel.graph.growth import grow
from rag_accel.graph.primitive_text import format_primitives
from rag_accel.graph.primitives import PrimitiveGraph
from rag_accel.graph.spec import offenders, verify
from rag_accel.passes.decompose import decompose


def owned(*kinds, capabilities=()):
    return EngineProfile(frozenset(kinds), capabilities=frozenset(capabilities))


def borrowed(name, *kinds):
    return BorrowedEngine(name, frozenset(kinds))


EMBEDDING, SEARCHING = PrimitiveKind.EMBEDDING, PrimitiveKind.SEARCHING
PREFILLING, DECODING = PrimitiveKind.PREFILLING, PrimitiveKind.DECODING
RERANKING = PrimitiveKind.RERANKING

OWNED = {
    "llm": owned(PREFILLING, DECODING),
    "embedder": owned(EMBEDDING),
    "index": owned(SEARCHING),
    "reranker": owned(RERANKING),
}
ENGINES = {
    "owned": OWNED,
    "borrowed": {
        "llm": borrowed("llm", PREFILLING, DECODING),
        "index": borrowed("index", EMBEDDING, SEARCHING),
    },
    "embedding_index": {"index": owned(SEARCHING, capabilities=["embeds"])},
    "hybrid_index": OWNED | {"index": owned(SEARCHING, capabilities=["text"])},
    "hybrid_embedding_index": {"index": owned(SEARCHING, capabilities=["embeds", "text"])},
    "borrowed_embedder": OWNED | {"embedder": borrowed("embedder", EMBEDDING)},
    "decoding_llm": {"llm": owned(DECODING)},
    "borrowed_oddity": {"llm": borrowed("llm", PrimitiveKind.FUNCTION, RERANKING)},
}


def keep(values):
    return values


def route(values):
    return END


FUNCTIONS = {"add": operator.add, "keep": keep, "route": route}


def cases():
    text = (Path(__file__).parent / "fixtures" / "decompose.txt").read_text(encoding="utf-8")
    for case in text.split("=== ")[1:]:
        title, _, rest = case.partition("\n")
        head, before, after = rest.strip().split("\n--- ")
        engines = ENGINES[head.removeprefix("engines: ")]
        graph, expected = before.removeprefix("ragraph\n"), after.removeprefix("p-graph\n")
        yield pytest.param(engines, graph, expected, id=title)


@pytest.mark.parametrize(("engines", "before", "after"), list(cases()))
def test_decompose_turns_stages_into_primitives(engines, before, after):
    graph = parse(before, FUNCTIONS)
    verify(graph, "ragraph", engines)
    lowered = decompose(graph, engines)
    assert format_primitives(lowered).split("\n") == after.split("\n")
    assert lowered == parse_primitives(after, FUNCTIONS)
    verify(lowered, "p-graph", engines)


def looping():
    g = RAGraph()
    g.add_generation("plan", "{input}").add_retrieval("search", query="plan", output="docs")
    g.add_generation("answer", "{docs}")
    g.add_edge(START, "plan").add_edge("plan", "search").add_edge("search", "answer")
    return g.add_edge("answer", route, targets=["search", END])


def test_a_region_is_lowered_with_the_names_of_its_turn():
    g = looping()
    first = grow(g)
    lowered = decompose(grow(g, "search", first), OWNED)
    assert [(one.name, one.after) for one in lowered.primitives] == [
        ("search#2.embedding", ("plan.decoding",)),
        ("search#2.searching", ("search#2.embedding",)),
        ("answer#2.prefilling", ("search#2.searching",)),
        ("answer#2.decoding", ("answer#2.prefilling",)),
        ("answer?#2.condition", ("answer#2.decoding",)),
    ]
    assert lowered.external == ("plan.decoding",)
    assert lowered.primitives[0].output == "search#2.vector"
    verify(lowered, "p-graph", OWNED)


def test_depth_in_a_region_is_that_of_the_whole_graph():
    g = RAGraph().add_function("ask", keep).add_retrieval("search").add_generation("a", "{search}")
    g.add_edge(START, "ask").add_edge("ask", route, targets=["search", "a"])
    g.add_edge("search", "a").add_edge("a", END)
    start = decompose(grow(g), OWNED)
    assert [(one.name, one.depth) for one in start.primitives] == [
        ("ask.function", 5),
        ("ask?.condition", 4),
    ]
    chosen = decompose(grow(g, "a", grow(g)), OWNED)
    assert [one.depth for one in chosen.primitives] == [1, 0]


def test_depth_falls_in_a_region_whose_edge_closes_a_loop_of_the_whole_graph():
    g = RAGraph().add_retrieval("one", output="docs").add_retrieval("two", output="docs")
    g.add_reducer("docs", operator.add).add_function("answer", keep, inputs="docs")
    g.add_edge(START, ["one", "two"]).add_edge(["one", "two"], "answer").add_edge("answer", route)
    verify(g, "ragraph", OWNED)
    start = decompose(grow(g), OWNED)
    assert offenders(start, "p-graph", OWNED) == ()
    depth = {one.name: one.depth for one in start.primitives}
    assert depth["one.searching"] == depth["two.searching"] == depth["answer.function"] + 1


def test_the_region_of_start_is_the_whole_graph_where_there_are_no_conditions():
    g = looping().freeze()
    straight = g.edit(remove=["answer?"], link=[("answer", END)])
    assert decompose(grow(straight), OWNED) == decompose(straight, OWNED)


def test_nothing_is_lowered_to_nothing():
    assert decompose(RAGraph(), {}) == PrimitiveGraph()
    assert decompose((), {}) == PrimitiveGraph()


def test_every_stage_without_a_fitting_engine_is_reported_at_once():
    g = looping().add_rerank("best", documents="docs", engine="lmm").add_edge("search", "best")
    with pytest.raises(GraphError, match="cannot be lowered") as caught:
        decompose(g, {"llm": owned(EMBEDDING), "index": owned(SEARCHING)})
    assert caught.value.offenders == (
        "known-engines: stage 'plan' needs DECODING, but engine 'llm' executes EMBEDDING",
        "known-engines: stage 'search' names engine 'embedder'; valid: llm, index",
        "known-engines: stage 'answer' needs DECODING, but engine 'llm' executes EMBEDDING",
        "known-engines: stage 'best' names engine 'lmm'; valid: llm, index; did you mean 'llm'?",
    )


def test_a_borrowed_engine_that_executes_nothing_is_reported():
    g = RAGraph().add_generation("a", "{input}").add_edge(START, "a").add_edge("a", END)
    with pytest.raises(GraphError) as caught:
        decompose(g, {"llm": borrowed("llm")})
    assert caught.value.offenders == (
        "known-engines: stage 'a' needs DECODING, but engine 'llm' executes none",
    )


@st.composite
def layered_graphs(draw):
    """Return graphs of retrievals, generations and functions in layers, with some branches."""
    g = RAGraph()
    size = draw(st.integers(min_value=1, max_value=8))
    for index in range(size):
        kind = draw(st.sampled_from(["retrieval", "generation", "function"]))
        if kind == "retrieval":
            g.add_retrieval(index)
        elif kind == "generation":
            g.add_generation(index, "{input}")
        else:
            g.add_function(index, keep, inputs="input")
    g.add_edge(START, 0)
    for index in range(1, size):
        source = draw(st.integers(min_value=0, max_value=index - 1))
        if draw(st.booleans()):
            g.add_edge(source, index)
        else:
            back = draw(st.integers(min_value=0, max_value=index))
            g.add_edge(source, route, targets=[index, back, END])
    return g.add_edge(size - 1, END)


@given(layered_graphs(), st.sampled_from(["owned", "borrowed"]))
def test_what_decompose_makes_keeps_the_rules_of_the_p_graph(graph, engines):
    verify(graph, "ragraph")
    assert offenders(decompose(graph, ENGINES[engines]), "p-graph", ENGINES[engines]) == ()


@given(layered_graphs(), st.data())
def test_regions_agree_with_the_whole_graph_about_depth(graph, data):
    depth = {one.name: one.depth for one in decompose(graph, OWNED).primitives}
    grown = grow(graph)
    for _ in range(3):
        entry = data.draw(st.sampled_from([stage.name for stage in graph.freeze().stages]))
        region = grow(graph, entry, grown)
        lowered = decompose(region, OWNED)
        assert offenders(lowered, "p-graph", OWNED) == ()
        for one in lowered.primitives:
            assert one.depth == depth[f"{one.stage}.{one.kind.lower()}"]
        grown += region

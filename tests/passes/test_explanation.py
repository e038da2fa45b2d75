from dataclasses import replace

import pytest

from rag_accel import Constant
from rag_accel.engine_api import BorrowedEngine, Capability, EngineProfile, PrimitiveKind
from rag_accel.errors import ConfigError, GraphError
from rag_accel.graph import END, START, RAGraph
from rag_accel.passes.explanation import explain_graph

OWNED_INDEX = EngineProfile(frozenset({PrimitiveKind.SEARCHING}), max_batch=128)
EMBEDDER = EngineProfile(frozenset({PrimitiveKind.EMBEDDING}), max_batch=32)
LLM = BorrowedEngine("llm", frozenset({PrimitiveKind.DECODING}))


def workflow():
    g = RAGraph()
    g.add_retrieval("search", top_k=5, output="docs")
    g.add_generation("answer", "Answer {input} using {docs}.")
    g.add_edge(START, "search").add_edge("search", "answer").add_edge("answer", END)
    return g


def test_the_plan_shows_the_stages_and_how_their_engines_are_driven():
    plan = explain_graph(workflow(), {"llm": LLM, "embedder": EMBEDDER, "index": OWNED_INDEX})
    assert plan.split("\n") == [
        "ragraph: 2 stages",
        "  ragraph(input)",
        "  search: Retrieval@index(input) -> docs  after START  top_k=5",
        "  answer: Generation@llm(input, docs) -> answer  after search  "
        'prompt="Answer {input} using {docs}."',
        "  END: after answer",
        "engines:",
        "  embedder: owned, stepped in its own worker; EMBEDDING; batches of up to 32",
        "  index: owned, stepped in its own worker; SEARCHING; batches of up to 128",
        "  llm: borrowed, called where its caller is; DECODING; any number of calls at once",
    ]


class Notes:
    """An object whose own text has an address."""


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ((), "Constant(())"),
        ((1, None, b"x"), "Constant((1, None, b'x'))"),
        (Notes(), "Constant(Notes(...))"),
        ([Notes()], "Constant([Notes(...)])"),
        (("a\nb",), r"Constant(('a\nb',))"),
        (tuple(range(1000)), "Constant((0, 1, 2, 3, 4, 5, ...))"),
        (("x" * 1000,), "Constant(('xxxxxxxxxxxx...xxxxxxxxxxxxx',))"),
        ([], '{"constant": []}'),
    ],
)
def test_a_constant_is_shown_in_short(value, shown):
    graph = workflow()
    graph = graph.freeze().edit(
        replace=[replace(graph.freeze().by_name["search"], fallback=Constant(value))]
    )
    line = explain_graph(graph, {"llm": LLM, "embedder": EMBEDDER, "index": OWNED_INDEX}).split(
        "\n"
    )[2]
    assert line.endswith(f"top_k=5 fallback={shown}")


def test_the_p_graph_shows_the_primitives():
    engines = {"llm": LLM, "embedder": EMBEDDER, "index": OWNED_INDEX}
    assert explain_graph(workflow(), engines, "p-graph").split("\n")[:5] == [
        "p-graph: 2 stages as 3 primitives, longest path 3",
        "  search.embedding: EMBEDDING@embedder(input) -> search.vector  depth=2",
        "  search.searching: SEARCHING@index(search.vector) -> docs  "
        "after search.embedding  depth=1 top_k=5",
        "  answer.decoding: DECODING@llm(input, docs) -> answer  after search.searching  "
        'depth=0 prompt="Answer {input} using {docs}."',
        "engines:",
    ]


def unrelated():
    g = RAGraph()
    g.add_retrieval("first").add_retrieval("then").add_rerank("best", documents="then", top_n=2)
    g.add_edge(START, "first").add_edge("first", "then").add_edge("then", "best")
    return g.add_edge("best", END)


PRUNING = frozenset({"prune_dependencies"})
RERANKER = EngineProfile(frozenset({PrimitiveKind.RERANKING}))
SEARCHERS = {
    "index": EngineProfile(
        OWNED_INDEX.kinds, pure=True, capabilities=frozenset({Capability.EMBEDS})
    ),
    "reranker": RERANKER,
}


def test_the_e_graph_shows_what_is_executed_and_what_each_pass_changed():
    assert explain_graph(unrelated(), SEARCHERS, "e-graph").split("\n")[:6] == [
        "e-graph: 3 stages as 3 primitives, longest path 2",
        "  first.searching: SEARCHING@index(input) -> first  depth=0 top_k=5",
        "  then.searching: SEARCHING@index(input) -> then  depth=1 top_k=5",
        "  best.reranking: RERANKING@reranker(input, then) -> best  after then.searching  "
        "depth=0 size=5 top_n=2",
        "passes:",
        "  prune_dependencies: then.searching waits for nothing instead of first.searching",
    ]


def test_a_pass_that_is_off_is_not_told_of():
    plan = explain_graph(unrelated(), SEARCHERS, "e-graph", passes=frozenset())
    assert plan.split("\n")[0] == "e-graph: 3 stages as 3 primitives, longest path 3"
    assert "passes:\n  none\n" in plan


def test_a_pass_that_leaves_the_graph_says_so():
    engines = {"llm": LLM, "embedder": EMBEDDER, "index": OWNED_INDEX}
    plan = explain_graph(workflow(), engines, "e-graph", passes=PRUNING)
    assert "passes:\n  prune_dependencies: nothing to change\nengines:\n" in plan


def test_values_that_are_reduced_count_as_read_by_the_users_code():
    g = unrelated().add_reducer("then", max)
    plan = explain_graph(g, SEARCHERS, "e-graph")
    assert "best.reranking waits for then.searching, first.searching" in plan


def test_limits_of_borrowed_engines_are_told():
    index = BorrowedEngine("index", frozenset({PrimitiveKind.SEARCHING}), max_concurrency=1)
    plan = explain_graph(workflow(), {"index": index})
    assert plan.split("\n")[-2:] == [
        "  index: borrowed, called where its caller is; SEARCHING; up to 1 call at once",
        "  llm: not given",
    ]


def test_an_embedder_that_is_not_needed_is_not_listed():
    index = EngineProfile(
        frozenset({PrimitiveKind.SEARCHING}), capabilities=frozenset({Capability.EMBEDS})
    )
    assert "embedder:" not in explain_graph(workflow(), {"index": index})


def test_an_empty_graph_has_a_plan():
    for stage, title in (
        ("ragraph", "ragraph: 0 stages\n  ragraph(input)"),
        ("p-graph", "p-graph: 0 stages as 0 primitives, longest path 0"),
        (
            "e-graph",
            "e-graph: 0 stages as 0 primitives, longest path 0\npasses:\n"
            "  prune_dependencies: nothing to change",
        ),
    ):
        assert explain_graph(RAGraph(), {}, stage, PRUNING) == f"{title}\nengines:\n  none"


def test_no_saving_is_promised_without_a_profile():
    assert "sav" not in explain_graph(workflow(), {"index": OWNED_INDEX, "llm": LLM})


def test_an_unknown_stage_is_an_option_error():
    with pytest.raises(ConfigError, match=r"ragraph \| p-graph \| e-graph"):
        explain_graph(workflow(), {}, "x-graph")


def test_a_graph_that_cannot_be_lowered_says_why():
    with pytest.raises(GraphError, match="names engine 'llm'"):
        explain_graph(workflow(), {"index": OWNED_INDEX, "embedder": EMBEDDER}, "p-graph")

import pytest

from rag_accel.engine_api import BorrowedEngine, EngineProfile, PrimitiveKind
from rag_accel.errors import ConfigError, GraphError
from rag_accel.explain.plan import explain_graph
from rag_accel.graph import END, START, RAGraph

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


def test_limits_of_borrowed_engines_are_told():
    index = BorrowedEngine("index", frozenset({PrimitiveKind.SEARCHING}), max_concurrency=1)
    plan = explain_graph(workflow(), {"index": index})
    assert plan.split("\n")[-2:] == [
        "  index: borrowed, called where its caller is; SEARCHING; up to 1 call at once",
        "  llm: not given",
    ]


def test_an_embedder_that_is_not_needed_is_not_listed():
    index = EngineProfile(frozenset({PrimitiveKind.SEARCHING}), capabilities=frozenset({"embeds"}))
    assert "embedder:" not in explain_graph(workflow(), {"index": index})


def test_an_empty_graph_has_a_plan():
    for stage, title in (
        ("ragraph", "ragraph: 0 stages\n  ragraph(input)"),
        ("p-graph", "p-graph: 0 stages as 0 primitives, longest path 0"),
    ):
        assert explain_graph(RAGraph(), {}, stage) == f"{title}\nengines:\n  none"


def test_no_saving_is_promised_without_a_profile():
    assert "sav" not in explain_graph(workflow(), {"index": OWNED_INDEX, "llm": LLM})


def test_an_unknown_stage_is_an_option_error():
    with pytest.raises(ConfigError, match=r"ragraph \| p-graph"):
        explain_graph(workflow(), {}, "x-graph")


def test_a_graph_that_cannot_be_lowered_says_why():
    with pytest.raises(GraphError, match="names engine 'llm'"):
        explain_graph(workflow(), {"index": OWNED_INDEX, "embedder": EMBEDDER}, "p-graph")

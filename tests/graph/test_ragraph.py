import copy
import operator
import pickle

import pytest

from rag_accel.errors import GraphError
from rag_accel.graph import END, START, FrozenRAGraph, RAGraph
from rag_accel.graph.nodes import Edge
from rag_accel.graph.spec import verify
from rag_accel.graph.stages import Branch, Function, Generation, Rerank, Retrieval


def hyde():
    g = RAGraph()
    g.add_generation("hypothesis", prompt="Write a passage that answers {input}.", output="passage")
    g.add_retrieval("search", query="passage", top_k=5, output="docs")
    g.add_generation("answer", prompt="Answer {input} using {docs}.")
    g.add_edge(START, "hypothesis")
    g.add_edge("hypothesis", "search")
    g.add_edge("search", "answer")
    g.add_edge("answer", END)
    return g


def test_the_hyde_listing_builds_a_valid_graph():
    graph = hyde()
    verify(graph, "ragraph")
    assert [stage.name for stage in graph.freeze().stages] == ["hypothesis", "search", "answer"]
    assert graph.freeze().depth == {"hypothesis": 2, "search": 1, "answer": 0}


def test_the_multistep_listing_with_integer_names_builds_a_valid_graph():
    g = RAGraph()
    g.add_generation(0, prompt="Decompose {input} into subquestions.", output="subquestion")
    g.add_retrieval(1, top_k=2, query="subquestion", output="docs")
    g.add_generation(2, prompt="Answer {subquestion} using {docs}.")
    g.add_edge(START, 0)
    g.add_edge(0, 1)
    g.add_edge(1, 2)
    g.add_edge(2, lambda s: 1 if s.get("subquestion") else END)
    verify(g, "ragraph")
    assert [stage.name for stage in g.freeze().stages] == ["0", "1", "2", "2?"]


def test_every_option_of_the_builder_reaches_its_stage():
    g = RAGraph(inputs=["question", "role"])
    g.add_generation(
        "a", "{question}", output="o", stop="\n", max_tokens=9, system="{role}", engine="small"
    )
    g.add_retrieval(
        "b", query="o", top_k=3, where={"lang": "en"}, output="d", engine="wiki", embedder="e5"
    )
    g.add_rerank("c", query="question", documents="d", top_n=2, output="best", engine="cross")
    g.add_function("f", len, inputs="best", output="count").add_function("all", print)
    assert g.freeze().inputs == ("question", "role")
    assert g.freeze().stages == (
        Generation("a", "{question}", "o", "{role}", ("\n",), 9, "small"),
        Retrieval("b", "o", 3, (("lang", "en"),), "d", "wiki", "e5"),
        Rerank("c", "d", "question", 2, "best", "cross"),
        Function("f", len, ("best",), False, "count"),
        Function("all", print, (), True, "all"),
    )


def test_lists_join_and_fan_out():
    g = RAGraph().add_edge("a", ["b", "c"]).add_edge(["b", "c"], "d")
    assert set(g.freeze().links) == {("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")}


def test_an_edge_given_twice_is_one_edge():
    assert RAGraph().add_edge("a", "b").add_edge("a", "b").freeze().links == (("a", "b"),)


def test_a_condition_becomes_a_branch_behind_its_sources():
    def choose(values):
        return END

    g = RAGraph().add_function("a", len).add_function("b", len)
    g.add_edge(["a", "b"], choose, targets=["a", END])
    graph = g.freeze()
    assert graph.by_name["a+b?"] == Branch("a+b?", choose, ("a", "END"))
    assert graph.predecessors["a+b?"] == ("a", "b")


def test_conditions_of_one_source_get_names_of_their_own():
    g = RAGraph().add_edge(START, lambda values: END).add_edge(START, lambda values: "a")
    assert [stage.name for stage in g.freeze().stages] == ["START?", "START?2"]


def test_targets_without_a_condition_are_refused():
    with pytest.raises(GraphError, match="without a condition"):
        RAGraph().add_edge("a", "b", targets=["b"])


@pytest.mark.parametrize("name", [True, None, 1.5])
def test_a_name_is_text_or_an_integer(name):
    with pytest.raises(GraphError, match="bad stage name"):
        RAGraph().add_function(name, len)


def test_edges_say_what_they_carry():
    g = hyde().add_function("log", print, inputs=["input"])
    g.add_edge("search", "log").add_edge("log", lambda values: END, targets=["answer", END])
    kinds = {(edge.source, edge.target): edge.kind for edge in g.freeze().edges}
    assert kinds["hypothesis", "search"] == "data"
    assert kinds["search", "log"] == kinds["answer", "END"] == "control"
    assert kinds["START", "hypothesis"] == "data"
    assert Edge("log?", "answer", "condition") in g.freeze().edges


def test_freezing_returns_the_same_object_until_something_is_added():
    g = hyde()
    before = g.freeze()
    assert g.freeze() is before
    assert before.freeze() is before
    g.add_reducer("docs", operator.add)
    assert g.freeze() is not before
    assert before.reducers == ()


def test_graphs_are_equal_by_content_whatever_the_order_of_their_edges():
    g = RAGraph().add_function("a", len).add_function("b", len)
    h = RAGraph().add_function("a", len).add_function("b", len)
    g.add_edge(START, "a").add_edge("a", "b").add_edge("b", END)
    h.add_edge("b", END).add_edge("a", "b").add_edge(START, "a")
    assert g.freeze() == h.freeze()
    assert hash(g.freeze()) == hash(h.freeze())


def test_a_frozen_graph_cannot_be_changed():
    graph = hyde().freeze()
    with pytest.raises(AttributeError):
        graph.stages = ()
    with pytest.raises(TypeError):
        graph.by_name["answer"] = None


@pytest.mark.parametrize("again", [copy.deepcopy, lambda graph: pickle.loads(pickle.dumps(graph))])
def test_a_frozen_graph_survives_copying_and_pickling(again):
    graph = hyde().freeze()
    assert again(graph) == graph
    assert again(graph).depth == graph.depth


def test_an_edit_that_changes_nothing_returns_the_old_graph():
    graph = hyde().freeze()
    assert graph.edit() is graph
    assert graph.edit(replace=[graph.by_name["search"]], link=[("search", "answer")]) is graph
    assert graph.edit(remove=["nothing"], unlink=[("answer", "search")]) is graph


def test_one_edit_applies_many_changes_and_leaves_the_old_graph_alone():
    graph = hyde().freeze()
    edited = graph.edit(
        add=[Rerank("best", "docs")],
        replace=[Retrieval("search", "passage", 50, output="docs")],
        link=[("search", "best"), ("best", "answer")],
        unlink=[("search", "answer")],
    )
    assert edited.by_name["search"].top_k == 50
    assert edited.predecessors["answer"] == ("best",)
    assert graph == hyde().freeze()
    assert isinstance(edited, FrozenRAGraph)


def test_a_removed_stage_takes_its_links_along():
    edited = hyde().freeze().edit(remove=["search"])
    assert edited.links == (("START", "hypothesis"), ("answer", "END"))


def test_depth_counts_a_loop_once():
    g = RAGraph()
    for name in "abc":
        g.add_function(name, len, inputs=["input"])
    g.add_edge(START, "a").add_edge("a", "b").add_edge("b", "c")
    g.add_edge("c", lambda values: END, targets=["a", END])
    depth = g.freeze().depth
    assert [depth[name] for name in ("a", "b", "c", "c?")] == [3, 2, 1, 0]

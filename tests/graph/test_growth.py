import operator

import pytest

from rag_accel.errors import GraphError
from rag_accel.graph import END, START, RAGraph
from rag_accel.graph.growth import choose, grow


def built(names, *edges):
    """Return a graph of functions; an edge to a tuple is a condition that may choose from it."""
    g = RAGraph()
    for name in names.split():
        g.add_function(name, len, inputs=["input"])
    for source, target in edges:
        if isinstance(target, tuple):
            g.add_edge(source, lambda values: END, targets=target)
        else:
            g.add_edge(source, target)
    return g


def shown(instances):
    return [(instance.name, instance.after) for instance in instances]


def loop():
    return built(
        "plan search answer",
        (START, "plan"),
        ("plan", "search"),
        ("search", "answer"),
        ("answer", ("search", END)),
    )


def test_start_grows_everything_up_to_and_including_the_first_branches():
    assert shown(grow(loop())) == [
        ("plan", ()),
        ("search", ("plan",)),
        ("answer", ("search",)),
        ("answer?", ("answer",)),
    ]


def test_a_later_turn_numbers_its_instances_and_waits_for_the_latest_of_the_past():
    first = grow(loop())
    second = grow(loop(), "search", first)
    assert shown(second) == [
        ("search#2", ("plan",)),
        ("answer#2", ("search#2",)),
        ("answer?#2", ("answer#2",)),
    ]
    third = grow(loop(), "search", first + second)
    assert shown(third)[0] == ("search#3", ("plan",))
    assert [instance.turn for instance in third] == [3, 3, 3]


def test_depth_is_that_of_the_whole_graph_on_every_turn():
    first = grow(loop())
    assert [instance.depth for instance in first] == [3, 2, 1, 0]
    assert [instance.depth for instance in grow(loop(), "search", first)] == [2, 1, 0]


def test_a_join_waits_for_all_its_predecessors():
    g = built("a b c d", (START, ["a", "b"]), ("a", "c"), (["b", "c"], "d"), ("d", END))
    assert shown(grow(g)) == [("a", ()), ("b", ()), ("c", ("a",)), ("d", ("b", "c"))]


def test_a_branch_may_wait_for_several_stages():
    g = built("a b c", (START, ["a", "b"]), (["a", "b"], ("c", END)), ("c", END))
    assert shown(grow(g))[-1] == ("a+b?", ("a", "b"))


def test_a_branch_may_stand_at_the_start():
    g = built("a b", (START, ("a", "b")), (["a", "b"], END))
    assert shown(grow(g)) == [("START?", ())]


def test_a_join_inside_a_region_does_not_wait_for_what_was_never_grown():
    g = built(
        "web wiki answer", (START, ("web", "wiki")), (["web", "wiki"], "answer"), ("answer", END)
    )
    region = grow(g, "wiki", grow(g))
    assert shown(region) == [("wiki", ()), ("answer", ("wiki",))]


def test_stages_chosen_by_one_answer_join_once():
    g = built(
        "web wiki answer", (START, ("web", "wiki")), (["web", "wiki"], "answer"), ("answer", END)
    )
    region = grow(g, ["web", "wiki"], grow(g))
    assert shown(region) == [("web", ()), ("wiki", ()), ("answer", ("web", "wiki"))]


def test_a_stage_reached_by_two_decisions_runs_for_each_of_them():
    g = built(
        "web wiki answer", (START, ("web", "wiki")), (["web", "wiki"], "answer"), ("answer", END)
    )
    first = grow(g)
    web = grow(g, "web", first)
    assert shown(grow(g, "wiki", first + web)) == [("wiki", ()), ("answer#2", ("web", "wiki"))]


def test_end_grows_nothing():
    assert grow(loop(), END) == ()
    assert grow(loop(), []) == ()


def test_growth_is_pure():
    g = loop()
    first = grow(g)
    assert grow(g, "search", first) == grow(g, "search", first)
    assert grow(g) == first


def test_an_instance_knows_its_stage_and_graph():
    g = loop()
    assert grow(g)[1].stage is g.freeze().by_name["search"]
    assert grow(g)[1].graph is g.freeze()


def test_a_loop_past_its_bound_is_an_error_that_names_the_stage():
    g = loop()
    grown = grow(g, max_turns=2)
    grown += grow(g, "search", grown, max_turns=2)
    with pytest.raises(GraphError, match="turned too often") as caught:
        grow(g, "search", grown, max_turns=2)
    assert caught.value.where == "stage 'search'"
    assert "max_loops" in caught.value.hint


def test_an_unknown_entry_suggests_the_nearest():
    with pytest.raises(GraphError, match="unknown stage") as caught:
        grow(loop(), "serach")
    assert caught.value.hint == "did you mean 'search'?"


def test_an_answer_that_starts_two_writers_of_one_output_needs_a_reducer():
    g = RAGraph().add_function("web", len, output="docs").add_function("wiki", len, output="docs")
    g.add_edge(START, lambda values: ["web", "wiki"], targets=["web", "wiki"])
    g.add_edge(["web", "wiki"], END)
    with pytest.raises(GraphError, match="write one output") as caught:
        grow(g, ["web", "wiki"])
    assert caught.value.found == "stages 'web' and 'wiki'"
    g.add_reducer("docs", operator.add)
    assert shown(grow(g, ["web", "wiki"])) == [("web", ()), ("wiki", ())]


def test_an_answer_that_starts_ordered_writers_needs_none():
    g = RAGraph().add_function("web", len, output="docs").add_function("more", len, output="docs")
    g.add_edge("web", "more").add_edge("more", END)
    assert shown(grow(g, ["web", "more"])) == [("web", ()), ("more", ("web",))]


def test_unconditional_cycles_are_refused_rather_than_grown():
    with pytest.raises(GraphError, match="cycle"):
        grow(built("a b", (START, "a"), ("a", "b"), ("b", "a")))


@pytest.mark.parametrize(
    ("answer", "chosen"),
    [
        ("search", ("search",)),
        (END, ()),
        ([], ()),
        (["search", END, "search"], ("search",)),
        (("search",), ("search",)),
    ],
)
def test_an_answer_is_a_name_a_list_of_names_or_end(answer, chosen):
    g = loop()
    assert choose(g, g.freeze().by_name["answer?"], answer) == chosen


def test_integers_answer_for_stages_named_by_integers():
    g = RAGraph().add_function(1, len)
    g.add_edge(1, lambda values: 1)
    assert choose(g, g.freeze().by_name["1?"], 1) == ("1",)


@pytest.mark.parametrize("answer", ["plan", "serch", None, {"search"}, [None], 3])
def test_an_answer_outside_the_declared_targets_is_an_error_that_lists_them(answer):
    g = loop()
    with pytest.raises(GraphError, match="may not choose") as caught:
        choose(g, g.freeze().by_name["answer?"], answer)
    assert caught.value.where == "branch 'answer?'"
    assert caught.value.valid == "search, END"


def test_an_undeclared_branch_may_choose_any_stage():
    g = built("a b", (START, "a"), ("b", END))
    g.add_edge("a", lambda values: "b")
    assert choose(g, g.freeze().by_name["a?"], "b") == ("b",)
    with pytest.raises(GraphError):
        choose(g, g.freeze().by_name["a?"], "c")

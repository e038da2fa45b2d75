"""Passes run in order, are checked, write down what they did, and plan each structure once."""

import gc
import weakref
from dataclasses import replace

import pytest
from graph_text import parse_primitives

from rag_accel.engine_api import Capability, EngineProfile, PrimitiveKind
from rag_accel.errors import ConfigError, GraphError, PassError
from rag_accel.graph import END, START, RAGraph
from rag_accel.passes.context import PassContext
from rag_accel.passes.decompose import decompose
from rag_accel.passes.manager import PLANS_KEPT, STATIC_PASSES, Pass, passes_named, run_passes

INDEX = EngineProfile(frozenset({PrimitiveKind.SEARCHING}), pure=True)
CONTEXT = PassContext({"index": INDEX})
PRUNING = replace(CONTEXT, enabled=frozenset({"prune_dependencies"}))


def graph_of(*lines):
    return parse_primitives("\n".join(["p-graph", *lines]))


TWO = graph_of(
    "a.searching: SEARCHING@index(input) -> a  depth=1",
    "b.searching: SEARCHING@index(input) -> b  after a.searching  depth=0",
)


class Counting:
    """Be a pass that changes nothing and counts what it is asked to rewrite."""

    def __init__(self):
        self.graphs = []

    def __call__(self, graph, context):
        self.graphs.append(graph)
        return graph


def counting():
    rewrite = Counting()
    return rewrite, (Pass("counting", rewrite),)


def test_the_plan_holds_the_graph_the_journal_and_what_was_freed():
    plan = run_passes(TWO, PRUNING)
    assert plan.graph.by_name["b.searching"].after == ()
    assert [str(change) for change in plan.journal] == [
        "prune_dependencies: b.searching waits for nothing instead of a.searching"
    ]
    assert plan.freed == {"b.searching": ("a.searching",)}


def test_a_pass_that_does_nothing_says_so():
    graph = graph_of("a.searching: SEARCHING@index(input) -> a")
    plan = run_passes(graph, PRUNING)
    assert plan.graph == graph
    assert [str(change) for change in plan.journal] == ["prune_dependencies: nothing to change"]
    assert plan.freed == {}


def test_without_passes_the_graph_comes_back_untouched():
    plan = run_passes(TWO, PassContext(enabled=frozenset()))
    assert plan.graph is TWO
    assert plan.journal == ()


def test_only_the_passes_that_are_on_run_and_in_their_order():
    said = []
    passes = tuple(
        Pass(name, lambda graph, context, name=name: (said.append(name), graph)[1])
        for name in ("third", "first", "second")
    )
    run_passes(TWO, replace(CONTEXT, enabled=frozenset({"second", "third"})), passes)
    assert said == ["third", "second"]


def test_a_pass_that_does_not_exist_is_an_option_error():
    with pytest.raises(ConfigError, match=r"found prune_dependency; valid: prune_dependencies"):
        run_passes(TWO, PassContext(enabled=frozenset({"prune_dependency"})))


NAMES = [one.name for one in STATIC_PASSES]
ESTIMATED = {"decompose_stages", "pipeline_decoding", "rerank_by_source"}


@pytest.mark.parametrize(
    ("text", "enabled"),
    [
        ("all", None),
        ("default", frozenset({*NAMES, "split_nodes", "early_prefill", "speculate"} - ESTIMATED)),
        (" none", frozenset()),
        ("prune_dependencies", frozenset({"prune_dependencies"})),
        ("prune_dependencies, ", frozenset({"prune_dependencies"})),
        ("", frozenset()),
    ],
)
def test_which_passes_are_on_can_be_said_in_one_text(text, enabled):
    assert passes_named(text) == enabled


@pytest.mark.parametrize("text", ["prune", "all, none", "All"])
def test_a_text_that_names_no_pass_is_an_option_error(text):
    with pytest.raises(ConfigError, match="no such pass"):
        passes_named(text)


def test_a_pass_that_breaks_a_rule_is_named_with_what_it_broke():
    def lose(graph, context):
        return graph.edit(remove=["a.searching"])

    with pytest.raises(PassError, match=r"pass 'lose'.*'b.searching' waits for 'a.searching'"):
        run_passes(TWO, CONTEXT, (Pass("lose", lose),))


def test_a_graph_that_is_not_valid_is_no_fault_of_a_pass():
    with pytest.raises(GraphError, match="not a valid p-graph"):
        run_passes(graph_of("a.searching: SEARCHING@index() -> a  after b.searching"), CONTEXT)


def test_the_journal_tells_what_came_went_and_was_altered():
    def swap(graph, context):
        first = graph.by_name["a.searching"]
        second = replace(graph.by_name["b.searching"], after=("c.searching",), size=2)
        third = replace(first, name="c.searching", instance="c", output="c")
        return graph.edit(put=[second, third], remove=["a.searching"])

    (change,) = run_passes(TWO, CONTEXT, (Pass("swap", swap),)).journal
    assert str(change).split("\n") == [
        "swap: c.searching is new",
        "swap: a.searching is gone",
        "swap: b.searching is altered",
        "swap: b.searching waits for c.searching instead of a.searching",
    ]


# Plans that are kept -------------------------------------------------------------------------


def workflow(fn=len, prompt="{input}", where=None):
    graph = RAGraph().add_retrieval("search", where=where).add_function("f", fn, inputs="search")
    graph.add_function("g", str, inputs="search").add_edge(START, "search")
    graph.add_edge("search", "f").add_edge("f", "g")
    return decompose(graph.add_edge("g", END), {"index": INDEX_THAT_EMBEDS})


INDEX_THAT_EMBEDS = replace(INDEX, capabilities=frozenset({Capability.EMBEDS}))
EMBEDDING = PassContext({"index": INDEX_THAT_EMBEDS})


def test_a_structure_is_planned_once_and_each_graph_keeps_its_own_values():
    rewrite, passes = counting()
    first = run_passes(workflow(len, where={"tags": ["x"]}), EMBEDDING, passes).graph
    second = run_passes(workflow(repr, where={"tags": ["y"]}), EMBEDDING, passes).graph
    assert len(rewrite.graphs) == 1
    assert first.by_name["f.function"].attribute("fn") is len
    assert second.by_name["f.function"].attribute("fn") is repr
    assert second == workflow(repr, where={"tags": ["y"]})


@pytest.mark.parametrize(
    "other",
    [
        (TWO, replace(CONTEXT, reduced=frozenset({"b"}))),
        (TWO, PassContext({"index": replace(INDEX, max_batch=3)})),
        (TWO.edit(put=[replace(TWO.by_name["b.searching"], size=2)]), CONTEXT),
        (TWO.edit(put=[replace(TWO.primitives[1], attributes=(("top_k", 5),))]), CONTEXT),
    ],
    ids=["another reducer", "another profile", "another size", "another attribute"],
)
def test_what_differs_in_anything_a_pass_sees_is_planned_anew(other):
    rewrite, passes = counting()
    run_passes(TWO, CONTEXT, passes)
    run_passes(*other, passes)
    assert len(rewrite.graphs) == 2


def test_equal_numbers_of_other_types_are_other_values():
    _, passes = counting()
    for value in (1, True, 1.0):
        one = replace(TWO.primitives[0], attributes=(("top_k", value),))
        found = run_passes(TWO.edit(put=[one]), CONTEXT, passes).graph.by_name["a.searching"]
        assert type(found.attribute("top_k")) is type(value)


def test_the_engines_that_a_graph_does_not_name_do_not_count():
    rewrite, passes = counting()
    run_passes(TWO, CONTEXT, passes)
    run_passes(TWO, PassContext({"index": INDEX, "llm": INDEX}), passes)
    assert len(rewrite.graphs) == 1


def test_a_profile_that_cannot_be_hashed_is_planned_every_time():
    rewrite, passes = counting()
    profile = replace(INDEX, capabilities={"hint"})
    for _ in range(2):
        run_passes(TWO, PassContext({"index": profile}), passes)
    assert len(rewrite.graphs) == 2


def test_no_more_plans_are_kept_than_the_bound():
    rewrite, passes = counting()
    for size in range(1, PLANS_KEPT + 2):
        run_passes(TWO.edit(put=[replace(TWO.primitives[0], size=size)]), CONTEXT, passes)
    run_passes(TWO.edit(put=[replace(TWO.primitives[0], size=PLANS_KEPT + 1)]), CONTEXT, passes)
    assert len(rewrite.graphs) == PLANS_KEPT + 1
    run_passes(TWO, CONTEXT, passes)
    assert len(rewrite.graphs) == PLANS_KEPT + 2


def test_a_plan_holds_on_to_no_function_of_the_users():
    class Callable:
        def __call__(self, found):
            return found

    function = Callable()
    is_alive = weakref.ref(function)
    run_passes(workflow(function), EMBEDDING, STATIC_PASSES)
    del function
    gc.collect()
    assert is_alive() is None

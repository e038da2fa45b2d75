import operator
from dataclasses import dataclass

import pytest
from graph_text import parse_primitives

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.errors import GraphError
from rag_accel.graph import END, START, RAGraph
from rag_accel.graph.spec import offenders, verify


@dataclass(frozen=True)
class Executes:
    kinds: frozenset


def stay(values):
    return END


def chain(*names, inputs="input"):
    g = RAGraph()
    for name in names:
        g.add_function(name, len, inputs=inputs)
    for source, target in zip((START, *names), (*names, END), strict=True):
        g.add_edge(source, target)
    return g


def fork(*outputs):
    """Return START -> one | two -> join -> END, the first two writing ``outputs``."""
    g = RAGraph()
    g.add_function("one", len, inputs="input", output=outputs[0])
    g.add_function("two", len, inputs="input", output=outputs[1])
    g.add_function("join", len, inputs="input")
    return g.add_edge(START, ["one", "two"]).add_edge(["one", "two"], "join").add_edge("join", END)


def test_a_graph_without_faults_is_valid():
    assert offenders(chain("a", "b"), "ragraph") == ()


BROKEN = {
    "two stages of one name": (
        chain("a").add_function("a", print, inputs=[]),
        "unique-names: 2 stages are named 'a'",
    ),
    "an edge to a stage that does not exist": (
        chain("search").add_edge("search", "serch"),
        "known-nodes: edge 'search' -> 'serch': no stage 'serch'; "
        "valid: search, END; did you mean 'search'?",
    ),
    "an edge from a stage that does not exist": (
        chain("a").add_edge("zzz", "a"),
        "known-nodes: edge 'zzz' -> 'a': no stage 'zzz'; valid: START, a",
    ),
    "an edge out of END": (
        chain("a").add_edge(END, "a"),
        "known-nodes: edge 'END' -> 'a': no stage 'END'; valid: START, a",
    ),
    "an edge into START": (
        chain("a").add_edge("a", START),
        "known-nodes: edge 'a' -> 'START': no stage 'START'; valid: a, END",
    ),
    "a condition target that does not exist": (
        chain("search").add_edge("search", stay, targets=["serch", END]),
        "known-targets: branch 'search?': no stage 'serch'; "
        "valid: search, search?, END; did you mean 'search'?",
    ),
    "no way in": (RAGraph(), "entry: no edge leaves START"),
    "no way out": (
        RAGraph().add_function("a", len, inputs=[]).add_edge(START, "a"),
        "exit: no path leads from START to END",
    ),
    "a stage nothing leads to": (
        chain("a").add_function("b", len, inputs=[]),
        "reachable: nothing leads to stage 'b'",
    ),
    "a cycle of plain edges": (
        chain("a", "b").add_edge("b", "a"),
        "loop-exit: no condition in the loop of a, b",
    ),
    "a loop its condition cannot leave": (
        chain("a").add_edge("a", stay, targets="a"),
        "loop-exit: no condition may leave the loop of a, a?",
    ),
    "a value nobody writes": (
        chain("passage").add_retrieval("s", query="pasage").add_edge("passage", "s"),
        "known-values: stage 's' reads 'pasage'; valid: input, passage, s; "
        "did you mean 'passage'?",
    ),
    "a placeholder nobody writes": (
        chain("docs").add_generation("g", "{dosc}").add_edge("docs", "g"),
        "known-values: stage 'g' reads 'dosc'; valid: input, docs, g; did you mean 'docs'?",
    ),
    "a reducer for an output nobody writes": (
        chain("docs").add_reducer("dcs", operator.add),
        "known-values: a reducer is given for 'dcs'; valid: docs; did you mean 'docs'?",
    ),
    "a value that is written too late": (
        chain("a").add_function("b", len, inputs="c").add_function("c", len, inputs="input")
        .add_edge("a", "b").add_edge("b", "c"),
        "written-first: stage 'b' reads 'c', but no path leads to it from 'c'",
    ),
    "two unordered writers of one output": (
        fork("docs", "docs"),
        "ordered-writers: stages 'one' and 'two' write 'docs' in no order; "
        "add an edge or add_reducer('docs', fn)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_a_rule_reports(fault):
    graph, line = BROKEN[fault]
    assert offenders(graph, "ragraph") == (line,)


def test_all_offenders_come_in_one_error():
    g = RAGraph()
    g.add_generation("a", "{nope}").add_generation("a", "x").add_edge(START, "a").add_edge("a", "b")
    g.add_retrieval("c", engine="indx").add_edge("a", stay, targets=["a", "d"])
    with pytest.raises(GraphError) as caught:
        verify(g, "ragraph", {"llm": Executes(frozenset()), "index": Executes(frozenset())})
    rules = [line.split(":")[0] for line in caught.value.offenders]
    assert rules == [
        "unique-names", "known-nodes", "known-targets", "exit", "reachable", "known-values",
        "known-engines",
    ]  # fmt: skip
    assert str(caught.value).count("\n  - ") == 7
    assert "found 7 offenders" in str(caught.value)


def test_engines_are_checked_only_where_they_are_given():
    g = (
        RAGraph()
        .add_generation("a", "{input}", engine="lm")
        .add_edge(START, "a")
        .add_edge("a", END)
    )
    assert offenders(g, "ragraph") == ()
    assert offenders(g, "ragraph", {"llm": Executes(frozenset())}) == (
        "known-engines: stage 'a' names engine 'lm'; valid: llm; did you mean 'llm'?",
    )


def test_the_default_embedder_may_be_missing_and_a_named_one_may_not():
    engines = {"index": Executes(frozenset())}
    g = RAGraph().add_retrieval("a").add_retrieval("b", embedder="e5")
    g.add_edge(START, ["a", "b"]).add_edge(["a", "b"], END)
    assert offenders(g, "ragraph", engines) == (
        "known-engines: stage 'b' names engine 'e5'; valid: index",
    )


def test_a_reducer_allows_unordered_writers():
    assert offenders(fork("docs", "docs").add_reducer("docs", operator.add), "ragraph") == ()


def test_writers_in_sequence_need_no_reducer():
    g = RAGraph().add_function("a", len, output="x").add_function("b", len, output="x")
    g.add_edge(START, "a").add_edge("a", "b").add_edge("b", END)
    assert offenders(g, "ragraph") == ()


def test_stages_a_condition_chooses_between_need_no_reducer():
    g = fork("left", "right")
    g.add_function("web", len, output="docs").add_function("wiki", len, output="docs")
    g.add_edge("join", stay, targets=["web", "wiki"]).add_edge(["web", "wiki"], END)
    assert offenders(g, "ragraph") == ()


def test_writers_of_which_one_stands_behind_a_condition_that_waits_for_the_other_need_none():
    g = fork("docs", "other").add_function("late", len, output="docs").add_edge("late", END)
    g.add_edge("join", stay, targets=["late", END])
    assert offenders(g, "ragraph") == ()


@pytest.mark.parametrize(("outputs", "other"), [(("docs", "x"), "two"), (("x", "docs"), "one")])
def test_writers_of_which_one_stands_behind_an_unrelated_condition_need_one(outputs, other):
    g = fork(*outputs).add_function("late", len, output="docs").add_edge("late", END)
    g.add_edge(other, stay, targets=["late", END])
    assert [line.split(":")[0] for line in offenders(g, "ragraph")] == ["ordered-writers"]


def test_a_loop_does_not_make_its_writers_ordered():
    g = fork("docs", "docs").add_edge("join", stay, targets=["one", END])
    assert [line.split(":")[0] for line in offenders(g, "ragraph")] == ["ordered-writers"]


def test_a_value_written_on_an_earlier_turn_of_a_loop_may_be_read():
    g = RAGraph().add_generation("ask", "{input}").add_function("note", len, inputs="seen")
    g.add_function("see", len, inputs="ask", output="seen")
    g.add_edge(START, "ask").add_edge("ask", "note").add_edge("note", "see")
    g.add_edge("see", stay, targets=["ask", END])
    assert offenders(g, "ragraph") == ()


def test_an_undeclared_branch_leads_anywhere_and_out_of_any_loop():
    g = chain("a").add_function("b", len, inputs="a").add_edge("a", stay)
    assert offenders(g, "ragraph") == ()


SOUND = """p-graph
s.embedding: EMBEDDING@embedder(input) -> s.vector  depth=2
s.searching: SEARCHING@index(s.vector) -> docs  after s.embedding  depth=1
f.function: FUNCTION(docs) -> f  after s.searching
"""
ENGINES = {
    "embedder": Executes(frozenset({PrimitiveKind.EMBEDDING})),
    "index": Executes(frozenset({PrimitiveKind.SEARCHING})),
}


def test_a_primitive_graph_without_faults_is_valid():
    assert offenders(parse_primitives(SOUND), "p-graph", ENGINES) == ()
    assert offenders(parse_primitives(SOUND), "e-graph", ENGINES) == ()


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("f.function:", "s.searching:", "unique-names: 2 primitives are named 's.searching'"),
        (
            "after s.searching",
            "after s.serching",
            "known-primitives: 'f.function' waits for 's.serching', which does not exist; "
            "valid: s.embedding, s.searching, f.function; did you mean 's.searching'?",
        ),
        (
            "@embedder",
            "",
            "known-engines: 's.embedding' is EMBEDDING and names no engine",
        ),
        (
            "@embedder",
            "@embeder",
            "known-engines: 's.embedding' names engine 'embeder'; "
            "valid: embedder, index; did you mean 'embedder'?",
        ),
        (
            "@embedder",
            "@index",
            "known-engines: 's.embedding' is EMBEDDING, but engine 'index' executes SEARCHING",
        ),
        (
            "depth=2",
            "depth=1",
            "falling-depth: 's.embedding' has depth 1, 's.searching' after it 1",
        ),
        (
            "after s.embedding",
            "",
            "own-inputs: 's.searching' reads 's.vector' without waiting for 's.embedding'",
        ),
    ],
)
def test_a_rule_of_primitive_graphs_reports(old, new, line):
    assert line in offenders(parse_primitives(SOUND.replace(old, new, 1)), "e-graph", ENGINES)


def test_a_stage_may_write_a_value_that_it_has_read():
    text = "p-graph\na.prefilling: PREFILLING@llm(text) -> a.prefill  depth=1\n"
    text += "a.decoding: DECODING@llm(a.prefill) -> text  after a.prefilling"
    assert offenders(parse_primitives(text), "p-graph") == ()


def test_primitives_that_wait_for_each_other_are_reported():
    text = "p-graph\na.function: FUNCTION()  after b.function\n"
    text += "b.function: FUNCTION()  after a.function"
    assert "acyclic: these wait for each other: a.function, b.function" in offenders(
        parse_primitives(text), "e-graph"
    )


def test_only_the_graph_after_the_passes_holds_what_passes_make():
    text = "p-graph\na.partial_prefilling: PARTIAL_PREFILLING@llm() -> a.prefill"
    assert offenders(parse_primitives(text), "p-graph") == (
        "whole-kinds: 'a.partial_prefilling' is PARTIAL_PREFILLING, which only passes make",
    )
    assert offenders(parse_primitives(text), "e-graph") == ()


def test_primitives_of_an_earlier_region_may_be_waited_for():
    text = "p-graph given z.function\na.function: FUNCTION()  after z.function"
    assert offenders(parse_primitives(text), "p-graph") == ()


@pytest.mark.parametrize(
    ("graph", "stage"),
    [(chain("a"), "p-graph"), (parse_primitives(SOUND), "ragraph"), (chain("a"), "f-graph")],
)
def test_a_graph_is_verified_only_as_a_stage_of_its_kind(graph, stage):
    with pytest.raises(GraphError, match="no such stage"):
        verify(graph, stage)


def test_verification_reads_a_frozen_graph_and_its_builder_alike():
    g = chain("a", "b")
    assert offenders(g, "ragraph") == offenders(g.freeze(), "ragraph")

"""A long beginning of a prompt is prefilled as soon as its own values are there."""

from dataclasses import replace
from pathlib import Path

import pytest
from graph_text import parse_primitives
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.engine_api import EngineProfile, PrimitiveKind
from rag_accel.graph.primitive_text import format_primitives
from rag_accel.graph.prompt import split_prompt
from rag_accel.graph.spec import verify
from rag_accel.passes.context import PassContext
from rag_accel.passes.prune_dependencies import prune_dependencies
from rag_accel.passes.split_prefill import LEAST_TOKENS, LONG_VALUE_TOKENS, split_prefill

PREFILLING, DECODING = PrimitiveKind.PREFILLING, PrimitiveKind.DECODING
RESUMING = frozenset(
    {PREFILLING, DECODING, PrimitiveKind.PARTIAL_PREFILLING, PrimitiveKind.FULL_PREFILLING}
)
ENGINES = {
    "llm": EngineProfile(RESUMING, pure=True),
    "whole": EngineProfile(frozenset({PREFILLING, DECODING}), pure=True),
    "impure": EngineProfile(RESUMING),
    "embedder": EngineProfile(frozenset({PrimitiveKind.EMBEDDING}), pure=True),
    "index": EngineProfile(frozenset({PrimitiveKind.SEARCHING}), pure=True),
}
CONTEXT = PassContext(ENGINES)


def cases():
    path = Path(__file__).parent / "fixtures" / "split_prefill.txt"
    for case in path.read_text(encoding="utf-8").split("=== ")[1:]:
        title, before, after = case.strip().split("\n--- ")
        before, after = before.removeprefix("before\n"), after.removeprefix("after\n")
        yield pytest.param(before, after, id=title)


@pytest.mark.parametrize(("before", "after"), list(cases()))
def test_prefills_are_split(before, after):
    graph = parse_primitives(before)
    verify(graph, "p-graph", ENGINES)
    split = split_prefill(graph, CONTEXT)
    assert sorted(format_primitives(split).split("\n")) == sorted(after.split("\n"))
    verify(split, "e-graph", ENGINES)
    assert split_prefill(split, CONTEXT) is split
    assert (split is graph) == (before == after)


def answering(prompt):
    return parse_primitives(
        "p-graph\n"
        "search.searching: SEARCHING@index(input) -> docs  depth=2\n"
        "answer.prefilling: PREFILLING@llm(input, docs) -> answer.prefill"
        f'  after search.searching  depth=1 prompt="{prompt}"\n'
        "answer.decoding: DECODING@llm(answer.prefill) -> answer  after answer.prefilling  depth=0"
    )


def test_a_beginning_of_the_least_length_is_split():
    words = "abc " * (LEAST_TOKENS - 1)
    graph = answering(words + "abc{docs}")
    assert split_prefill(graph, CONTEXT) is graph
    split = split_prefill(answering(words + "abcd{docs}"), CONTEXT)
    partial = split.by_name["answer.partial_prefilling"]
    assert partial.attribute("prompt") == words + "abcd"


def test_documents_and_completions_are_long_by_themselves():
    assert LONG_VALUE_TOKENS >= LEAST_TOKENS
    graph = parse_primitives(
        "p-graph\n"
        "plan.decoding: DECODING@llm(input) -> plan  depth=3 max_tokens=5\n"
        "search.searching: SEARCHING@index(plan) -> docs  after plan.decoding  depth=2\n"
        "answer.prefilling: PREFILLING@llm(plan, docs) -> answer.prefill"
        '  after search.searching  depth=1 prompt="{plan} {docs}"\n'
        "answer.decoding: DECODING@llm(answer.prefill) -> answer  after answer.prefilling  depth=0"
    )
    assert split_prefill(graph, CONTEXT) is graph
    long = parse_primitives(format_primitives(graph).replace(" max_tokens=5", ""))
    assert "answer.partial_prefilling" in split_prefill(long, CONTEXT).by_name


def test_a_prompt_that_is_no_plain_text_is_left_alone():
    graph = answering("x" * 400 + "{docs}")
    odd = (("prompt", object()),)
    graph = graph.edit(put=[replace(graph.by_name["answer.prefilling"], attributes=odd)])
    assert split_prefill(graph, CONTEXT) is graph


pieces = st.lists(st.sampled_from(["{a}", "{b}", "{docs}", "{{", "}}", "word ", "\n"]), max_size=8)


@given(pieces)
def test_the_beginning_reads_as_the_prompt_does_up_to_its_last_value(parts):
    prompt = "x" * 300 + "".join(parts)
    graph = answering("{docs}")
    one = replace(graph.by_name["answer.prefilling"], attributes=(("prompt", prompt),))
    split = split_prefill(graph.edit(put=[one]), CONTEXT)
    partial = split.by_name.get("answer.partial_prefilling")
    if "{docs}" not in parts:
        assert partial is None or "docs" not in partial.inputs
        return
    assert partial is not None
    whole = prompt.format(a="<a>", b="<b>", docs="<docs>")
    beginning = partial.attribute("prompt").format(a="<a>", b="<b>", docs="<docs>")
    assert whole.startswith(beginning)
    assert beginning == whole.partition("<docs>")[0]
    named = [piece.value for piece in split_prompt(partial.attribute("prompt")) if piece.value]
    assert list(partial.inputs) == list(dict.fromkeys(named))


def test_pruning_what_was_split_changes_nothing():
    graph = prune_dependencies(answering("x" * 400 + "{input}{docs}"), CONTEXT)
    split = split_prefill(graph, CONTEXT)
    assert prune_dependencies(split, CONTEXT) is split

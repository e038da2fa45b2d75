"""What is known of a prompt before all the rest is prefilled early, past code of the user's."""

from __future__ import annotations

from typing import Any

import pytest
from graph_text import parse_primitives

from rag_accel.engine_api import BorrowedEngine, EngineProfile, PrimitiveKind
from rag_accel.passes.context import PassContext
from rag_accel.passes.early_prefill import early_prefills

PREFILLING, DECODING = PrimitiveKind.PREFILLING, PrimitiveKind.DECODING
RESUMING = {*(PREFILLING, DECODING), PrimitiveKind.PARTIAL_PREFILLING}
ENGINES = {
    "llm": EngineProfile(frozenset(RESUMING), pure=True),
    "whole": EngineProfile(frozenset({PREFILLING, DECODING}), pure=True),
    "store": BorrowedEngine("store", kinds=frozenset({PrimitiveKind.SEARCHING})),
}
SEARCH = "search.searching: SEARCHING@store(input) -> docs  depth=3\n"
FORMAT = "format.function: FUNCTION(docs) -> text  after search.searching  depth=2\n"


def answer(prompt: str, inputs: str, more: str = "", engine: str = "llm") -> str:
    return (
        f"answer.decoding: DECODING@{engine}({inputs}) -> answer"
        f'  after format.function{more}  depth=0 prompt="{prompt}"'
    )


def early(*lines: str, reduced: tuple[str, ...] = ()) -> list[Any]:
    graph = parse_primitives("p-graph\n" + "".join(lines))
    context = PassContext(ENGINES, frozenset(reduced))  # type: ignore[arg-type]
    return [
        (one.name, one.inputs, one.after, one.attribute("prompt"))
        for one in early_prefills(graph, context)
    ]


def test_the_longest_known_beginning_is_begun_with_the_request() -> None:
    found = early(SEARCH, FORMAT, answer("{history} Q {input} D {text}", "history, input, text"))
    wanted = ("history", "input")
    assert found == [("answer.early_prefilling", wanted, (), "{history} Q {input} D ")]


def test_a_value_of_another_stage_is_waited_for() -> None:
    told = "told.function: FUNCTION(history) -> told  depth=1\n"
    text = answer("{told}{text}", "told, text", ", told.function")
    assert early(SEARCH, FORMAT, told, text) == [
        ("answer.early_prefilling", ("told",), ("told.function",), "{told}")
    ]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param((SEARCH, FORMAT, answer("Answer by {text}", "text")), id="literals"),
        pytest.param((SEARCH, FORMAT, answer("{text} {input}", "text, input")), id="unknown_first"),
        pytest.param(
            (SEARCH, FORMAT, answer("{input} {text}", "input, text", engine="whole")),
            id="engine_that_keeps_no_beginnings",
        ),
        pytest.param(
            (
                SEARCH,
                FORMAT,
                "a.prefilling: PREFILLING@llm(text) -> a.prefill  after format.function  depth=1"
                ' prompt="{text} and {docs}"',
            ),
            id="known_only_with_all_the_rest",
        ),
    ],
)
def test_nothing_is_begun_that_would_bring_nothing(lines: tuple[str, ...]) -> None:
    assert early(*lines) == []


def test_a_value_that_a_reducer_of_the_user_s_makes_is_not_read() -> None:
    text = answer("{history} {text}", "history, text")
    assert early(SEARCH, FORMAT, text, reduced=("history",)) == []


def test_a_prompt_that_is_cut_already_is_left_alone() -> None:
    partial = (
        "answer.partial_prefilling: PARTIAL_PREFILLING@llm(input) -> answer.prefix  depth=1"
        ' prompt="{input}"\n'
    )
    assert early(SEARCH, FORMAT, partial, answer("{input} {text}", "input, text")) == []

"""Workflows that go in rounds feed each round with the one before, and end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from workflow_harness import LLMS, Library, Script, run

from rag_accel import ConfigError, GraphError
from rag_accel.workflows import irg, multistep

anyhow = pytest.mark.parametrize("llm", LLMS.values(), ids=LLMS.keys())
LLM = Callable[[Script], Any]

PROMPTS: dict[str, Any] = {
    "decompose_prompt": "split {input} in {count}",
    "step_prompt": "{docs}: {question}",
    "prompt": "{notes}\n{input}",
}


@anyhow
def test_multistep_answers_each_part_and_then_the_whole(llm: LLM) -> None:
    script = Script(
        {
            "split why in 3": "1. who\n2) when\n\n- who",
            "[1] a person: who": "she",
            "[1] a year: when": "then",
            "Question: who\nAnswer: she\nQuestion: when\nAnswer: then\nwhy": "because",
        }
    )
    library = Library({"who": ["a person"], "when": ["a year"]})
    found = run(multistep(**PROMPTS), {"input": "why"}, llm=llm(script), index=library)
    assert found == "because"
    assert library.queries == ["who", "when"]


@anyhow
def test_a_plan_without_a_question_leaves_the_question_itself(llm: LLM) -> None:
    script = Script(
        {
            "split why in 2": " \n",
            "[1] fact: why": "so",
            "Question: why\nAnswer: so\nwhy": "because",
        }
    )
    library = Library({"why": ["fact"]})
    graph = multistep(**PROMPTS, max_questions=2)
    assert run(graph, {"input": "why"}, llm=llm(script), index=library) == "because"


@pytest.mark.parametrize("bound", [1, 2, 5])
def test_rounds_end_at_the_bound(bound: int) -> None:
    lines = [f"q{number}" for number in range(10)]
    library = Library({})
    graph = multistep(decompose_prompt="split", step_prompt="s", prompt="p", max_questions=bound)
    script = Script({"split": "\n".join(lines), "s": "so", "p": "because"})
    assert run(graph, {"input": "why"}, llm=script, index=library) == "because"
    assert library.queries == lines[:bound]


def test_rounds_end_when_the_user_says_so() -> None:
    library = Library({})
    graph = multistep(
        decompose_prompt="split",
        step_prompt="{question}",
        prompt="p",
        is_done=lambda notes: notes[-1].endswith("found"),
    )
    script = Script({"split": "a\nb\nc", "a": "nothing", "b": "found", "p": "because"})
    assert run(graph, {"input": "why"}, llm=script, index=library) == "because"
    assert library.queries == ["a", "b"]


def test_a_step_may_read_what_was_noted_before() -> None:
    graph = multistep(decompose_prompt="split", step_prompt="{notes}|{question}", prompt="{notes}")
    noted = "Question: a\nAnswer: 1"
    both = f"{noted}\nQuestion: b\nAnswer: 2"
    script = Script({"split": "a\nb", "|a": "1", f"{noted}|b": "2", both: "because"})
    assert run(graph, {"input": "why"}, llm=script, index=Library({})) == "because"


@anyhow
def test_irg_searches_with_the_question_and_the_last_answer(llm: LLM) -> None:
    script = Script({"[1] one why": "since", "[1] two why": "as", "[1] three why": "because"})
    library = Library({"why": ["one"], "why\nsince": ["two"], "why\nas": ["three"]})
    graph = irg(prompt="{docs} {input}", rounds=3)
    assert run(graph, {"input": "why"}, llm=llm(script), index=library) == "because"
    assert library.queries == ["why", "why\nsince", "why\nas"]


def test_one_round_of_irg_is_one_search() -> None:
    library = Library({"why": ["one"]})
    script = Script({"[1] one": "because"})
    assert run(irg(prompt="{docs}", rounds=1), {"input": "why"}, llm=script, index=library) == (
        "because"
    )


@pytest.mark.parametrize("bound", [0, -1, 1.5, True, "2"])
def test_bounds_are_checked(bound: Any) -> None:
    with pytest.raises(ConfigError, match="max_questions"):
        multistep(max_questions=bound)
    with pytest.raises(ConfigError, match="rounds"):
        irg(rounds=bound)


def test_more_rounds_than_loops_may_turn_are_a_named_error() -> None:
    lines = "\n".join(f"q{number}" for number in range(5))
    script = Script({"split": lines, "s": "so", "p": "because"})
    graph = multistep(decompose_prompt="split", step_prompt="s", prompt="p", max_questions=5)
    with pytest.raises(GraphError, match="max_loops"):
        run(graph, {"input": "why"}, llm=script, index=Library({}), max_loops=3)

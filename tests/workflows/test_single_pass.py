"""Workflows that answer in one pass say what the script leads to, and nothing is asked twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from workflow_harness import LLMS, Library, Script, run

from rag_accel import Accelerator
from rag_accel.engine_api import PrimitiveKind
from rag_accel.workflows import hyde, one_shot, recomp, search_backed

anyhow = pytest.mark.parametrize("llm", LLMS.values(), ids=LLMS.keys())
LLM = Callable[[Script], Any]


@anyhow
def test_one_shot_answers_from_what_it_finds(llm: LLM) -> None:
    script = Script({"[1] one\n\n[2] two\nwhy": "because"})
    graph = one_shot(prompt="{docs}\n{input}", top_k=2)
    library = Library({"why": ["one", "two", "three"]})
    assert run(graph, {"input": "why"}, llm=llm(script), index=library) == "because"


@anyhow
def test_hyde_searches_with_the_passage_it_made_up(llm: LLM) -> None:
    script = Script({"guess why": "since", "[1] so it is\nwhy": "because"})
    graph = hyde(hypothesis_prompt="guess {input}", prompt="{docs}\n{input}")
    library = Library({"since": ["so it is"]})
    assert run(graph, {"input": "why"}, llm=llm(script), index=library) == "because"
    assert library.queries == ["since"]


@anyhow
def test_recomp_answers_from_the_summary_only(llm: LLM) -> None:
    script = Script({"sum up [1] long\nfor why": "short", "short: why": "because"})
    graph = recomp(compress_prompt="sum up {docs}\nfor {input}", prompt="{summary}: {input}")
    library = Library({"why": ["long"]})
    assert run(graph, {"input": "why"}, llm=llm(script), index=library) == "because"


def test_each_engine_can_be_another() -> None:
    graph = recomp(compress_prompt="{docs}", prompt="{summary}", compressor="small", index="web")
    small, large = Script({"[1] long": "short"}), Script({"short": "because"})
    with Accelerator(llm=large, engines={"small": small}) as accelerator:
        accelerator.add_engine("web", Library({"why": ["long"]}), PrimitiveKind.SEARCHING)
        assert accelerator.run(graph, input="why") == "because"
    graph = hyde(hypothesis_prompt="{input}", prompt="{docs}", writer="small")
    small, large = Script({"why": "since"}), Script({"[1] so": "because"})
    library = Library({"since": ["so"]})
    found = run(graph, {"input": "why"}, llm=large, index=library, engines={"small": small})
    assert found == "because"


PROMPTS: dict[str, Any] = {
    "proxy_prompt": "try {input}",
    "judge_prompt": "judge {draft}",
    "prompt": "{docs}",
}


@anyhow
@pytest.mark.parametrize("verdict", ["ANSWER", " answer.", "**Answer**: it is right"])
def test_search_backed_keeps_the_draft_if_the_judge_lets_it(llm: LLM, verdict: str) -> None:
    script = Script({"try why": "since", "judge since": verdict})
    library = Library({})
    found = run(search_backed(**PROMPTS), {"input": "why"}, llm=llm(script), index=library)
    assert found == "since"
    assert library.queries == []


@anyhow
@pytest.mark.parametrize("verdict", ["SEARCH", "", "I cannot answer", "Answerable?"])
def test_search_backed_searches_if_the_judge_does_not(llm: LLM, verdict: str) -> None:
    script = Script({"try why": "since", "judge since": verdict, "[1] fact": "because"})
    library = Library({"why": ["fact"]})
    found = run(search_backed(**PROMPTS), {"input": "why"}, llm=llm(script), index=library)
    assert found == "because"
    assert library.queries == ["why"]


def test_the_judge_is_the_proxy_unless_it_is_named() -> None:
    small = Script({"try why": "since", "judge since": "ANSWER"})
    judge = Script({"judge since": "no"})
    graph = search_backed(**PROMPTS, proxy="small", wants_search=lambda verdict: verdict == "no")
    assert run(graph, {"input": "why"}, llm=judge, index=Library({}), engines={"small": small}) == (
        "since"
    )
    graph = search_backed(**PROMPTS, proxy="small", judge="strict", wants_search="no".__eq__)
    library = Library({"why": ["fact"]})
    engines = {"small": small, "strict": judge}
    large = Script({"[1] fact": "because"})
    found = run(graph, {"input": "why"}, llm=large, index=library, engines=engines)
    assert found == "because"

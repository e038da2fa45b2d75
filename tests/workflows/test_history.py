"""The earlier turns of a conversation stand before the context of each question."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from workflow_harness import Library, Script, longest_first, run

from rag_accel import Accelerator, ConfigError, DocumentError, RAGraph, workflows
from rag_accel.engine_api import (
    EngineProfile,
    Message,
    PrimitiveKind,
)
from rag_accel.testing import FakeEngine

TURNS = [("user", "How high is it?"), ("assistant", "3776 m.")]
TEXT = "Conversation so far:\n\nUser: How high is it?\nAssistant: 3776 m.\n\n"
WORKFLOWS: dict[str, Callable[..., RAGraph]] = {
    "one_shot": workflows.one_shot,
    "hyde": workflows.hyde,
    "recomp": workflows.recomp,
    "search_backed": workflows.search_backed,
    "multistep": workflows.multistep,
    "irg": workflows.irg,
    "naive_document_qa": workflows.naive_document_qa,
    "advanced_document_qa": workflows.advanced_document_qa,
    "refined": lambda **given: workflows.naive_document_qa(True, synthesis="refine", **given),
}
everyone = pytest.mark.parametrize("make", WORKFLOWS.values(), ids=WORKFLOWS.keys())


class Listener:
    """An LLM that keeps the prompts it was asked and answers alike."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return "SEARCH"


def asked(graph: RAGraph, **inputs: Any) -> list[str]:
    """Return the prompts of a request, in order of their texts."""
    listener, library = Listener(), Library({"why": ["one", "two"], "SEARCH": ["three"]})
    documents = {"documents": ["four"]} if "documents" in graph.freeze().inputs else {}
    engines = {"index": FakeEngine(), "embedder": FakeEngine()} if documents else {"index": library}
    given = {"input": "why", **documents, **inputs}
    run(graph, given, llm=listener, reranker=longest_first, **engines)
    return sorted(listener.prompts)


@everyone
def test_the_turns_stand_before_each_prompt(make: Callable[..., RAGraph]) -> None:
    without = asked(make())
    assert asked(make(history=True), history=TURNS) == [TEXT + prompt for prompt in without]


@everyone
def test_before_the_first_turn_the_prompts_are_those_without(make: Callable[..., RAGraph]) -> None:
    assert asked(make(history=True), history=[]) == asked(make())


@everyone
def test_without_a_history_the_graph_is_the_plain_one(make: Callable[..., RAGraph]) -> None:
    assert make(history=False).freeze() == make().freeze()
    assert "history" not in make().freeze().inputs


@pytest.mark.parametrize(
    "turns",
    [
        [Message("user", "How high is it?"), Message("assistant", "3776 m.")],
        [{"role": role, "content": text} for role, text in TURNS],
        "User: How high is it?\nAssistant: 3776 m.",
    ],
    ids=["messages", "mappings", "text"],
)
def test_turns_come_in_several_forms(turns: Any) -> None:
    assert workflows.Conversation()(turns) == TEXT


def test_a_prompt_may_place_the_conversation_itself() -> None:
    script = Script({f"Q: why\n{TEXT}": "because"})
    graph = workflows.one_shot(prompt="Q: {input}\n{conversation}", history=True)
    given = {"input": "why", "history": TURNS}
    assert run(graph, given, llm=script, index=Library({})) == "because"


@pytest.mark.parametrize(
    ("history", "named"),
    [
        ({"role": "user"}, "found dict"),
        ([*TURNS, ("robot", "beep")], r"turn 3.*robot.*system \| user \| assistant"),
        ([("user", 7)], "turn 1"),
        (["How high?"], "turn 1"),
        ([{"content": "How high?"}], "turn 1"),
    ],
)
def test_a_bad_history_is_named(history: Any, named: str) -> None:
    graph = workflows.one_shot(history=True)
    with pytest.raises(DocumentError, match=f"(?s){named}"):
        run(graph, {"input": "why", "history": history}, llm=str.upper, index=Library({}))


def test_turns_given_to_the_workflow_are_refused() -> None:
    with pytest.raises(ConfigError, match="history=True"):
        workflows.one_shot(history=TURNS)  # pyright: ignore[reportArgumentType]


def test_a_request_without_its_history_is_named() -> None:
    with pytest.raises(Exception, match="history"):
        run(workflows.one_shot(history=True), {"input": "why"}, llm=str.upper, index=Library({}))


KINDS = frozenset(
    {
        PrimitiveKind.PREFILLING,
        PrimitiveKind.DECODING,
        PrimitiveKind.PARTIAL_PREFILLING,
        PrimitiveKind.FULL_PREFILLING,
    }
)


def prefixes(graph: RAGraph) -> list[str]:
    """Return what is prefilled of the answer's prompt while the search runs."""
    llm = FakeEngine(profile=EngineProfile(KINDS, pure=True))
    with Accelerator(llm=llm, index=FakeEngine(), embedder=FakeEngine()) as accelerator:
        told = accelerator.explain(graph, "e-graph")
    return [line for line in told.splitlines() if ": PARTIAL_PREFILLING" in line]


def test_the_conversation_is_prefilled_while_the_search_runs() -> None:
    assert prefixes(workflows.one_shot()) == []
    (line,) = prefixes(workflows.one_shot(history=True))
    assert "PARTIAL_PREFILLING@llm(conversation)" in line
    assert "search" not in line.split("prompt=")[0]

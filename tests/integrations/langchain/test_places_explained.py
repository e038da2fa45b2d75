"""An explanation of an accelerated LangGraph uses its owner's names and says what is not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import places_programs
import pytest
from places_kit import Kit, Program
from places_leaves import Tally

from langchain_rag_accel import accelerate, explain

pytestmark = [
    pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning"),
    pytest.mark.filterwarnings("ignore::langgraph.warnings.LangGraphDeprecatedSinceV10"),
]

#: words of LangGraph's and LangChain's own parts, which nobody who writes a program has written
INTERNALS = (
    *("ChannelWrite", "BranchSpec", "PregelNode", "RunnableCallable", "ToolNode._", "__start__"),
    *("steps0", "steps1", "steps2", ".bound", ".func", ".afunc", "self0", "writers"),
    *("create_react_agent.<locals>", "_get_prompt_runnable", "_default_handle_tool_errors"),
)


def explained(build: Callable[[Kit], Any], kind: str) -> str:
    return explain(accelerate(build(Kit(kind, Tally()))))


def lines_of(text: str, leaf: str) -> list[str]:
    return [line for line in text.splitlines() if leaf in line]


@pytest.mark.parametrize(
    ("build", "kind", "leaf", "words"),
    [
        (places_programs.closure, "chat", "Chat", ["answer"]),
        (places_programs.runnable_node, "chat", "Chat", ["answer"]),
        (places_programs.store_as_retriever, "retriever", "VectorStoreRetriever", ["answer"]),
        (places_programs.store_as_retriever, "retriever", "Hashed", ["answer"]),
        (places_programs.conditional_edge, "chat", "Chat", ["begin", "route"]),
        (places_programs.subgraph_node, "chat", "Chat", ["inner", "deep"]),
        (places_programs.tool_decorator, "chat", "Chat", ["answer", "lookup"]),
        (places_programs.tool_field, "chat", "Chat", ["answer", "lookup"]),
        (places_programs.react_agent, "retriever", "Chat", ["agent"]),
        (places_programs.react_agent, "retriever", "Retriever", ["tools", "lookup"]),
        (places_programs.task_function, "chat", "Chat", ["flow", "look"]),
        (places_programs.graph_store, "embeddings", "Hashed", ["store"]),
    ],
    ids=lambda part: "_".join(part) if isinstance(part, list) else getattr(part, "__name__", part),
)
def test_a_leaf_is_listed_under_the_names_its_owner_gave(
    build: Callable[[Kit], Any], kind: str, leaf: str, words: list[str]
) -> None:
    text = explained(build, kind)
    assert any(all(word in line for word in words) for line in lines_of(text, leaf)), text


@pytest.mark.parametrize("program", places_programs.PROGRAMS, ids=lambda program: program.name)
def test_no_internal_of_the_framework_is_named(program: Program) -> None:
    text = explained(program.build, program.kinds[0])
    assert [word for word in INTERNALS if word in text] == []


@pytest.mark.parametrize(
    "build",
    [
        places_programs.class_made_in_node,
        places_programs.configurable,
    ],
    ids=lambda build: build.__name__,
)
def test_a_program_whose_leaves_cannot_be_seen_says_so(build: Callable[[Kit], Any]) -> None:
    text = explained(build, "chat")
    assert "no leaf is visible" in text
    assert "answer" in text  # the node whose code is opaque


def test_a_program_with_a_leaf_in_sight_does_not_say_that_there_is_none() -> None:
    assert "no leaf is visible" not in explained(places_programs.closure, "chat")

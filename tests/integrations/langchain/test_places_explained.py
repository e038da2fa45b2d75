"""An explanation of an accelerated LangGraph uses its owner's names and says what is not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import places_functions
import places_runnables
import places_runtime
import places_shapes
import places_tools
import pytest
from places_kit import Kit, Program
from places_leaves import Tally
from places_programs import PROGRAMS

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
    """Return the explanation of a program of the set."""
    return explain(accelerate(build(Kit(kind, Tally()))))


def lines_of(text: str, leaf: str) -> list[str]:
    """Return the lines that speak of a leaf's class."""
    return [line for line in text.splitlines() if leaf in line]


@pytest.mark.parametrize(
    ("build", "kind", "leaf", "words"),
    [
        (places_functions.closure, "chat", "Chat", ["answer"]),
        (places_functions.closure, "embeddings", "Hashed", ["answer"]),
        (places_functions.partial, "retriever", "Retriever", ["answer"]),
        (places_functions.default_argument, "chat", "Chat", ["answer"]),
        (places_functions.bound_method, "chat", "Chat", ["answer"]),
        (places_functions.runnable_lambda, "chat", "Chat", ["answer"]),
        (places_runnables.runnable_node, "chat", "Chat", ["answer"]),
        (places_runnables.store_as_retriever, "retriever", "VectorStoreRetriever", ["answer"]),
        (places_runnables.store_as_retriever, "retriever", "Hashed", ["answer"]),
        (places_shapes.conditional_edge, "chat", "Chat", ["begin", "route"]),
        (places_shapes.conditional_entry, "chat", "Chat", ["route"]),
        (places_shapes.subgraph_node, "chat", "Chat", ["inner", "deep"]),
        (places_shapes.subgraph_called, "chat", "Chat", ["answer", "deep"]),
        (places_tools.tool_decorator, "chat", "Chat", ["answer", "lookup"]),
        (places_tools.structured_tool, "embeddings", "Hashed", ["answer", "lookup"]),
        (places_tools.tool_field, "chat", "Chat", ["answer", "lookup"]),
        (places_tools.retriever_tool, "retriever", "Retriever", ["answer", "lookup"]),
        (places_tools.tool_node, "chat", "Chat", ["tools", "lookup"]),
        (places_tools.react_agent, "retriever", "Chat", ["agent"]),
        (places_tools.react_agent, "retriever", "Retriever", ["tools", "lookup"]),
        (places_runtime.task_function, "chat", "Chat", ["flow", "look"]),
        (places_runtime.entrypoint_function, "chat", "Chat", ["flow"]),
        (places_runtime.graph_store, "embeddings", "Hashed", ["store"]),
    ],
    ids=lambda part: "_".join(part) if isinstance(part, list) else getattr(part, "__name__", part),
)
def test_a_leaf_is_listed_under_the_names_its_owner_gave(
    build: Callable[[Kit], Any], kind: str, leaf: str, words: list[str]
) -> None:
    text = explained(build, kind)
    assert any(all(word in line for word in words) for line in lines_of(text, leaf)), text


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_no_internal_of_the_framework_is_named(program: Program) -> None:
    text = explained(program.build, program.kinds[0])
    assert [word for word in INTERNALS if word in text] == []


@pytest.mark.parametrize(
    "build",
    [
        places_functions.class_made_in_node,
        places_runtime.runtime_context,
        places_runtime.configurable,
        places_runtime.state_value,
    ],
    ids=lambda build: build.__name__,
)
def test_a_program_whose_leaves_cannot_be_seen_says_so(build: Callable[[Kit], Any]) -> None:
    text = explained(build, "chat")
    assert "no leaf is visible" in text
    assert "answer" in text  # the node whose code is opaque


def test_a_program_with_a_leaf_in_sight_does_not_say_that_there_is_none() -> None:
    assert "no leaf is visible" not in explained(places_functions.closure, "chat")

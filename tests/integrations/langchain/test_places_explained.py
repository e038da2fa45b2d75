"""An explanation of an accelerated LangGraph uses its owner's names and says what is not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import places_programs
import pytest
from places_programs import OF_ONE_KIND, PROGRAMS, Kit

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
#: programs, a leaf of each, and the words of its owner's by which that is named
NAMED = [
    (places_programs.runnable_node, "OwnAsyncRetriever", ["answer"]),
    (places_programs.store_as_retriever, "VectorStoreRetriever", ["answer"]),
    (places_programs.store_as_retriever, "OwnFakeEmbeddings", ["answer"]),
    (places_programs.conditional_edge, "OwnAsyncRetriever", ["begin", "route"]),
    (places_programs.subgraph_node, "OwnAsyncRetriever", ["inner", "deep"]),
    (places_programs.react_agent, "OwnToolCaller", ["agent"]),
    (places_programs.react_agent, "OwnAsyncRetriever", ["tools", "lookup"]),
    (places_programs.task_function, "OwnAsyncRetriever", ["flow", "look"]),
    (places_programs.graph_store, "OwnFakeEmbeddings", ["store"]),
]


def explained(build: Callable[[Kit], Any]) -> str:
    return explain(accelerate(build(Kit(OF_ONE_KIND.get(build, "retriever")))))


@pytest.mark.parametrize(
    ("build", "leaf", "words"), NAMED, ids=lambda part: getattr(part, "__name__", "")
)
def test_a_leaf_is_listed_under_the_names_its_owner_gave(
    build: Callable[[Kit], Any], leaf: str, words: list[str]
) -> None:
    text = explained(build)
    lines = [line for line in text.splitlines() if leaf in line]
    assert any(all(word in line for word in words) for line in lines), text


@pytest.mark.parametrize("build", PROGRAMS, ids=lambda build: build.__name__)
def test_no_internal_is_named_and_a_program_without_a_visible_leaf_says_so(
    build: Callable[[Kit], Any],
) -> None:
    text = explained(build)
    assert [word for word in INTERNALS if word in text] == []
    is_hidden = build in (places_programs.class_made_in_node, places_programs.configurable)
    assert ("no leaf is visible" in text) == is_hidden
    assert not is_hidden or "answer" in text  # the node whose code is opaque

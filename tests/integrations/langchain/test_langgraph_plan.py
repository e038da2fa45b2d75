"""An accelerated LangGraph tells its calls how far they are from its end, unless told not to."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("langgraph")

from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from langchain_rag_accel import accelerate
from rag_accel import Accelerator
from rag_accel.leaves.identity import leaf_depth


class State(TypedDict, total=False):
    seen: dict[str, int | None]


def look(name: str) -> Any:
    def node(state: State) -> State:
        tell = leaf_depth.get()
        return {"seen": {**state.get("seen", {}), name: tell() if tell is not None else None}}

    return node


def line(*names: str, **nodes: Any) -> Any:
    graph = StateGraph(State)
    for name in names:
        graph.add_node(name, nodes.get(name, look(name)))
    for source, target in zip([START, *names], names, strict=False):
        graph.add_edge(source, target)
    return graph.compile()


def test_nodes_know_their_place_and_code_outside_does_not() -> None:
    with Accelerator(strict=True) as accelerator:
        graph = accelerate(line("a", "b", "c"), accelerator=accelerator)
        assert graph.invoke({})["seen"] == {"a": 2, "b": 1, "c": 0}
        assert list(graph.stream({}))[-1]["c"]["seen"] == {"a": 2, "b": 1, "c": 0}
        assert leaf_depth.get() is None


def test_the_option_switches_it_off() -> None:
    with Accelerator(strict=True, use_skeleton=False) as accelerator:
        graph = accelerate(line("a", "b"), accelerator=accelerator)
        assert graph.invoke({})["seen"] == {"a": None, "b": None}


def test_a_graph_that_cannot_be_read_runs_without_a_plan(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiled = line("a")

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ValueError("no subgraphs")

    monkeypatch.setattr(type(compiled), "get_subgraphs", fail)
    with Accelerator(strict=True) as accelerator:
        assert accelerate(compiled, accelerator=accelerator).invoke({})["seen"] == {"a": None}
    assert "the plan of" in caplog.text

"""The skeleton of a compiled graph says how far each node is from the end."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("langgraph")

from langchain_core.runnables import RunnableLambda
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from rag_accel_adapters.langchain.langgraph_edges import Skeleton, skeleton


class State(TypedDict, total=False):
    text: str
    seen: Any


def graph_of(*edges: tuple[str, str], **nodes: Any) -> Any:
    """Return a compiled graph; nodes that are not given do nothing."""
    graph = StateGraph(State)
    for name in dict.fromkeys(name for edge in edges for name in edge if name not in (START, END)):
        graph.add_node(name, nodes.get(name, lambda state: {}))
    for source, target in edges:
        graph.add_edge(source, target)
    return graph.compile()


def depth(graph: Any) -> dict[str, int]:
    found = skeleton(graph)
    assert found is not None
    return dict(found.depth)


def test_the_last_node_is_0_and_each_before_it_one_deeper() -> None:
    graph = graph_of((START, "a"), ("a", "b"), ("b", "c"), ("c", END))
    assert depth(graph) == {"a": 2, "b": 1, "c": 0}


def test_the_longest_way_counts() -> None:
    graph = graph_of((START, "a"), ("a", "b"), ("b", "c"), ("a", "c"), (START, "d"), ("d", "c"))
    assert depth(graph) == {"a": 2, "b": 1, "d": 1, "c": 0}


def test_a_subgraph_counts_with_all_its_steps() -> None:
    inner = graph_of((START, "x"), ("x", "y"), ("y", END))
    middle = graph_of((START, "p"), ("p", "inner"), inner=inner)
    graph = graph_of((START, "m"), ("m", "last"), (START, "flat"), ("flat", "last"), m=middle)
    assert depth(graph) == {"m:p": 3, "m:inner:x": 2, "m:inner:y": 1, "flat": 1, "last": 0}


def test_a_loop_counts_once() -> None:
    graph = StateGraph(State)
    for name in ("a", "b", "c"):
        graph.add_node(name, lambda state: {})
    graph.add_edge(START, "a")
    graph.add_edge("a", "b")
    graph.add_conditional_edges("b", lambda state: "a", ["a", "c"])
    assert depth(graph.compile()) == {"a": 2, "b": 1, "c": 0}


def test_a_namespace_names_a_position_whatever_its_tasks() -> None:
    found = Skeleton({"m:inner:x": 2, "flat": 1})
    assert found.at("m:1-2|inner:3-4|x:5") == 2
    assert found.at("m:1-2|1|inner:3-4|x:5") == 2
    assert found.at("flat:9") == 1
    assert found.at("flat:9|undrawn:10") == 1, "as deep as the node that calls it"
    assert found.at("other:9") is None
    assert found.at("") is None


async def test_the_place_is_known_inside_nodes_and_nowhere_else() -> None:
    places: dict[str, Skeleton] = {}
    seen: dict[str, int | None] = {}

    async def look(state: State) -> dict[str, Any]:
        seen["async"] = places["graph"].here()
        return {}

    def look_in_thread(state: State) -> dict[str, Any]:
        seen["sync"] = places["graph"].here()
        return {}

    inner = graph_of((START, "x"), x=look)
    graph = graph_of((START, "m"), ("m", "last"), m=inner, last=look_in_thread)
    found = skeleton(graph)
    assert found is not None
    places["graph"] = found
    await graph.ainvoke({"text": ""})
    assert seen == {"async": 1, "sync": 0}
    assert found.here() is None


def test_what_is_no_compiled_graph_has_no_skeleton() -> None:
    assert skeleton(RunnableLambda(len)) is None
    assert skeleton(None) is None


@pytest.mark.processes
def test_looking_for_a_skeleton_does_not_import_langgraph() -> None:
    code = (
        "import sys; from rag_accel_adapters.langchain.langgraph_edges import skeleton; "
        "assert skeleton(5) is None; assert 'langgraph' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

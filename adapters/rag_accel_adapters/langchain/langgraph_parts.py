"""The parts of LangGraph's own objects, by the names that a graph's owner gave.

LangGraph is looked into only where it is loaded; nothing here imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

Parts = Iterator[tuple[str, Any]]


def is_graph(obj: Any) -> bool:
    """Tell whether an object is a compiled LangGraph."""
    return _is_a(obj, "langgraph.pregel", "Pregel")


def parts_of(obj: Any) -> Iterable[tuple[str, Any]] | None:
    """Return what an object of LangGraph's is made of, with names; None of any other object.

    A name is empty where the owner of the graph gave none.
    """
    if is_graph(obj):
        return _of_graph(obj)
    if is_tool_node(obj):
        return [("", tool) for tool in obj.tools_by_name.values()]
    if _is_a(obj, "langgraph._internal._runnable", "RunnableCallable"):
        return _of_callable(obj)
    if _is_a(obj, "langgraph.pregel._read", "PregelNode"):
        return [("", obj.bound)]
    return None


def is_tool_node(obj: Any) -> bool:
    """Tell whether an object is LangGraph's node that calls tools."""
    return _is_a(obj, "langgraph.prebuilt.tool_node", "ToolNode")


def _is_a(obj: Any, module: str, name: str) -> bool:
    # Private modules may move: then the object is walked as one of an unknown framework's.
    cls = getattr(sys.modules.get(module), name, None)
    return isinstance(cls, type) and isinstance(obj, cls)


def _of_graph(graph: Any) -> Parts:
    builder = getattr(graph, "builder", None)
    if builder is None:  # a function of the functional API
        nodes = {name: node.bound for name, node in graph.nodes.items()}
    else:
        nodes = {name: spec.runnable for name, spec in builder.nodes.items()}
        yield from _conditions(builder.branches)
    yield from ((name, node) for name, node in nodes.items() if not name.startswith("__"))
    for name, channel in graph.channels.items():
        reducer = getattr(channel, "operator", None)
        if reducer is not None:
            yield name, reducer
    embeddings = getattr(graph.store, "embeddings", None)
    if embeddings is not None:
        yield "store", embeddings


def _conditions(branches: Any) -> Parts:
    for node, conditions in branches.items():
        for name, condition in conditions.items():
            yield (name if node.startswith("__") else f"{node}.{name}"), condition.path


def _of_callable(obj: Any) -> Parts:
    for function in (obj.func, obj.afunc):
        if function is not None:
            yield "", function

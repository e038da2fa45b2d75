"""Graphs of LangChain and LangGraph programs whose leaves are accelerated."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from rag_accel.graph.ragraph import RAGraph
from rag_accel.interception.program import intercepting
from rag_accel_adapters.langchain.langgraph_edges import refused
from rag_accel_adapters.langchain.plan import graph_of
from rag_accel_adapters.langchain.walk import is_graph

TESTED_LANGGRAPH = "1.2.24"


def make_graph(program: Any, name: str, holder: object = None) -> RAGraph:
    """Return a runnable or a compiled LangGraph as a graph; arguments and errors as ``graph_of``.

    Raises:
        TranslationError: also if this LangGraph's inner functions are not known.
    """
    if not is_graph(program):
        return graph_of(program, name, holder)
    try:  # LangGraph is optional, and its inner functions may be others in another version.
        from rag_accel_adapters.langchain.langgraph_plan import graph_of as of_langgraph
    except ImportError as error:
        found = f"langgraph {version('langgraph')}, whose inner functions are not known: {error}"
        raise refused("program", found, f"langgraph {TESTED_LANGGRAPH}, as tested") from error
    return of_langgraph(program, name, holder)


plan_of = intercepting(make_graph)

"""Graphs of LangChain and LangGraph programs whose leaves are accelerated."""

from __future__ import annotations

from typing import Any

from rag_accel.graph.ragraph import RAGraph
from rag_accel.interception.graphs import intercepted_graph
from rag_accel_adapters.langchain.langgraph_parts import is_graph
from rag_accel_adapters.langchain.plan import graph_of


def plan_of(program: Any) -> RAGraph:
    """Return a program as a graph. While the graph lives, leaf calls are intercepted.

    Raises:
        TranslationError: naming the first part that is not declared, and its place.
    """
    return intercepted_graph(make_graph, program)


def make_graph(program: Any, name: str, holder: object = None) -> RAGraph:
    """Return a runnable or a compiled LangGraph as a graph.

    Args:
        program: the program.
        name: names the program, for what the scheduler learns of it.
        holder: what must live as long as the graph.

    Raises:
        TranslationError: naming the first part that is not declared, and its place.
    """
    if not is_graph(program):
        return graph_of(program, name, holder)
    # Imports LangGraph, which is optional.
    from rag_accel_adapters.langchain.langgraph_plan import graph_of as of_langgraph

    return of_langgraph(program, name, holder)

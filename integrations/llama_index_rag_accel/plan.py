"""Graphs of LlamaIndex programs whose leaves are accelerated."""

from __future__ import annotations

from typing import Any

from rag_accel.graph.ragraph import RAGraph
from rag_accel.interception.graphs import intercepted_graph
from rag_accel_adapters.llama_index.plan import graph_of


def plan_of(program: Any) -> RAGraph:
    """Return a program as a graph. While the graph lives, leaf calls are intercepted.

    Raises:
        TranslationError: naming the first part that is not declared, and its place.
    """
    return intercepted_graph(graph_of, program)

"""Graphs of LangChain programs whose leaves are accelerated."""

from __future__ import annotations

from itertools import count
from typing import Any

from rag_accel.graph.ragraph import RAGraph
from rag_accel.interception.patches import Interception
from rag_accel_adapters.langchain.plan import graph_of

_numbers = count(1)


def plan_of(program: Any) -> RAGraph:
    """Return a program as a graph. While the graph lives, leaf calls are intercepted.

    Raises:
        TranslationError: naming the first part that is not declared, and its place.
    """
    name = f"{type(program).__name__}#{next(_numbers)}"
    return graph_of(program, name, Interception(name))

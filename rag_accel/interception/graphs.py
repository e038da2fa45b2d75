"""Graphs of programs whose leaf calls are intercepted."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from rag_accel.graph.ragraph import RAGraph
from rag_accel.interception.patches import Interception

_numbers = count(1)


def intercepted_graph(make: Callable[[Any, str, object], RAGraph], program: Any) -> RAGraph:
    """Return a program as a graph. While the graph lives, leaf calls are intercepted.

    Args:
        make: makes the graph of the program, a name of its own and what must live as long.
        program: the program.
    """
    name = f"{type(program).__name__}#{next(_numbers)}"
    return make(program, name, Interception(name))

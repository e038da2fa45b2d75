"""Fit a request to its graph: which input its value is, and what the workflow is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rag_accel.errors import GraphError
from rag_accel.graph.frozen import FrozenRAGraph

NAME_LEN = 80
"""Most characters of a name made of a graph's stages."""


def inputs_of(graph: FrozenRAGraph, value: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's values by the names of the graph's inputs.

    Raises:
        GraphError: if it is not clear which of them ``value`` is.
    """
    left = [str(name) for name in graph.inputs if name not in named]
    if "input" in left or len(left) == 1:
        return {"input" if "input" in left else left[0]: value, **named}
    raise GraphError(
        "it is not clear which input of the graph the request's value is",
        found=", ".join(left) or "every input given by name",
        valid="an input named 'input', or just one that is not given by name",
        hint="give the others as keyword arguments",
    )


def name_of(graph: FrozenRAGraph) -> str:
    """Return the graph's stages as a name."""
    name = " > ".join(graph.by_name)
    return name if len(name) <= NAME_LEN else name[: NAME_LEN - 3] + "..."

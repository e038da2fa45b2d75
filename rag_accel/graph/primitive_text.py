"""A primitive graph as text, one primitive per line.

    p-graph
    search.embedding: EMBEDDING@embedder(input) -> search.vector  depth=3
    search.searching: SEARCHING@index(search.vector) -> docs  after search.embedding  depth=2

``given`` names primitives of earlier regions. ``instance=`` stands where the name alone does not
say it. Callables print as ``@name``, as in ``text.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from rag_accel.graph.lines import Line, References, format_line, format_names
from rag_accel.graph.primitives import Primitive, PrimitiveGraph, PrimitiveName

_MAPPINGS = frozenset({"where"})


def format_primitives(graph: PrimitiveGraph, names: References | None = None) -> str:
    """Return the text of a primitive graph, valid or not.

    Args:
        graph: the graph.
        names: makes the names of objects that text cannot hold.
    """
    return "\n".join(_lines(graph, References() if names is None else names))


def _lines(graph: PrimitiveGraph, names: References) -> Iterator[str]:
    given = f" given {format_names(graph.external)}" if graph.external else ""
    yield "p-graph" + given
    for primitive in graph.primitives:
        yield format_line(_line(primitive, names))


def _line(primitive: Primitive, names: References) -> Line:
    told: list[tuple[str, Any]] = [("depth", primitive.depth)]
    if primitive.size != 1:
        told.append(("size", primitive.size))
    if primitive.instance != _instance_in(primitive.name):
        told.append(("instance", primitive.instance))
    for key, value in primitive.attributes:
        told.append((key, names.encode(_opened(key, value), f"{primitive.stage}.{key}")))
    return Line(
        name=primitive.name,
        head=primitive.kind.value,
        engine=primitive.engine,
        inputs=primitive.inputs,
        reads_all=primitive.reads_all,
        output=primitive.output,
        after=primitive.after,
        attributes=tuple(told),
    )


def _instance_in(name: PrimitiveName) -> str:
    return name.rpartition(".")[0]


def _opened(key: str, value: object) -> object:
    """Convert the tuples of primitives to JSON values."""
    if not isinstance(value, tuple):
        return value
    items = cast("tuple[Any, ...]", value)
    return dict(items) if key in _MAPPINGS else list(items)

"""A primitive graph as text, written and read back, one primitive per line.

    p-graph
    search.embedding: EMBEDDING@embedder(input) -> search.vector  depth=3
    search.searching: SEARCHING@index(search.vector) -> docs  after search.embedding  depth=2

``given`` names primitives of earlier regions. ``instance=`` stands where the name alone does not
say it. Callables print as ``@name``, as in ``text.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.errors import GraphError
from rag_accel.graph.growth import InstanceName
from rag_accel.graph.lines import (
    Cursor,
    Line,
    References,
    format_line,
    format_names,
    numbered_lines,
    parse_line,
    resolve,
)
from rag_accel.graph.nodes import EngineName, listed, suggestion
from rag_accel.graph.option_inputs import Input
from rag_accel.graph.primitives import Primitive, PrimitiveGraph, PrimitiveName
from rag_accel.graph.prompt import ValueName

_HEADER = "p-graph"
_MAPPINGS = frozenset({"where"})


def format_primitives(graph: PrimitiveGraph) -> str:
    """Return the text of a primitive graph, valid or not."""
    return "\n".join(_lines(graph, References()))


def primitive_references(graph: PrimitiveGraph) -> dict[str, Any]:
    """Return the object of each ``@name`` of ``format_primitives(graph)``."""
    names = References()
    for _ in _lines(graph, names):
        pass
    return names.bound


def parse_primitives(text: str, functions: Mapping[str, Any] | None = None) -> PrimitiveGraph:
    """Return the graph that ``format_primitives`` wrote as ``text``.

    Raises:
        GraphError: if the text does not follow the grammar, or an ``@name`` is not among
            ``functions``.
    """
    primitives: list[Primitive] = []
    lines = numbered_lines(text)
    if not lines:
        raise GraphError("the graph's text is empty", valid=f"a first line {_HEADER}")
    external = _read_header(*lines[0])
    for number, content in lines[1:]:
        primitives.append(_read_primitive(parse_line(content, number), number, functions or {}))
    return PrimitiveGraph(tuple(primitives), external)


def _lines(graph: PrimitiveGraph, names: References) -> Iterator[str]:
    given = f" given {format_names(graph.external)}" if graph.external else ""
    yield _HEADER + given
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


def _read_primitive(line: Line, number: int, functions: Mapping[str, Any]) -> Primitive:
    given = {key: resolve(value, functions) for key, value in line.attributes}
    name = PrimitiveName(line.name)
    return Primitive(
        name=name,
        instance=InstanceName(given.pop("instance", _instance_in(name))),
        kind=_kind(line, number),
        engine=None if line.engine is None else EngineName(line.engine),
        inputs=tuple(ValueName(value) for value in line.inputs),
        output=None if line.output is None else ValueName(line.output),
        after=tuple(PrimitiveName(source) for source in line.after),
        depth=given.pop("depth", 0),
        size=given.pop("size", 1),
        reads_all=line.reads_all,
        attributes=tuple((key, _closed(key, value)) for key, value in given.items()),
    )


def _kind(line: Line, number: int) -> PrimitiveKind:
    head = line.head or ""
    if head in PrimitiveKind.__members__:
        return PrimitiveKind(head)
    raise GraphError(
        "unknown kind of primitive",
        where=f"line {number}",
        found=repr(head),
        valid=listed(PrimitiveKind),
        hint=suggestion(head, PrimitiveKind),
    )


def _instance_in(name: PrimitiveName) -> str:
    return name.rpartition(".")[0]


def _opened(key: str, value: object) -> object:
    """Convert the tuples of primitives to JSON values."""
    if not isinstance(value, tuple):
        return value
    items = cast("tuple[Any, ...]", value)
    return dict(items) if key in _MAPPINGS else list(items)


def _closed(key: str, value: Any) -> Any:
    """Undo ``_opened``."""
    if key in _MAPPINGS:
        return value if isinstance(value, Input) else tuple(value.items())
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def _read_header(number: int, content: str) -> tuple[PrimitiveName, ...]:
    cursor = Cursor(content, number)
    cursor.expect(_HEADER)
    external = cursor.names() if cursor.accept("given ") else ()
    cursor.finish()
    return tuple(PrimitiveName(name) for name in external)

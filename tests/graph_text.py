"""Graphs read back from the text that the package writes of them, for tests that begin with one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.graph import FrozenRAGraph, RAGraph, stages
from rag_accel.graph.lines import Line, Reference, References
from rag_accel.graph.option_inputs import INPUT_KEY, Input
from rag_accel.graph.primitive_text import format_primitives
from rag_accel.graph.primitives import Primitive, PrimitiveGraph
from rag_accel.graph.stages import Constant, Retry
from rag_accel.graph.text import format

_NAME = re.compile(r"[\w.?+/-][\w.?+/#-]*")
_HEAD = re.compile(r"\w+[@(]")
_KEY = re.compile(r"([A-Za-z_]\w*)=")

#: the fields that the inputs on a line are, where they do not follow from other fields
_INPUTS = {"Retrieval": ("query",), "Rerank": ("query", "documents"), "Ingestion": ("documents",)}


def _texts(value: Any) -> Any:
    return None if value is None else tuple(value)


def _fields(value: Any) -> Any:
    return value if isinstance(value, Input) else tuple(value.items())


_READ: dict[str, Callable[[Any], Any]] = {
    "stop": _texts,
    "targets": _texts,
    "relations": _texts,
    "where": _fields,
    "retry": lambda value: Retry(**value) if isinstance(value, Mapping) else value,
    "fallback": lambda value: Constant(value["constant"]) if isinstance(value, Mapping) else value,
}


def references(graph: RAGraph | FrozenRAGraph) -> dict[str, Any]:
    """Return the object of each ``@name`` of ``format(graph)``."""
    names = References()
    format(graph, names)
    return names.bound


def primitive_references(graph: PrimitiveGraph) -> dict[str, Any]:
    """Return the object of each ``@name`` of ``format_primitives(graph)``."""
    names = References()
    format_primitives(graph, names)
    return names.bound


def parse(text: str, functions: Mapping[str, Any] | None = None) -> FrozenRAGraph:
    """Return the graph of a text; ``functions`` has what each ``@name`` stands for."""
    head, *lines = _lines(text)
    found: list[Any] = []
    links: list[Any] = []
    reducers: dict[str, Any] = {}
    for cursor in lines:
        if cursor.accept("reduce "):
            output = cursor.name()
            cursor.expect("with ")
            reducers[output] = _bound(cursor.value(), functions)
            continue
        line = cursor.line()
        if line.head is not None:
            found.append(_stage(line, functions))
        links += ((source, line.name) for source in line.after)
    head.expect("ragraph(")
    inputs = head.names(end=")")
    head.expect(")")
    optional = head.names() if head.accept("optional=") else ()
    ends = "end" if head.accept("on_loop_limit=end") else "raise"
    return FrozenRAGraph(
        tuple(found), tuple(links), inputs, tuple(reducers.items()), ends, optional
    )


def parse_primitives(text: str, functions: Mapping[str, Any] | None = None) -> PrimitiveGraph:
    """Return the primitives of a text; ``functions`` has what each ``@name`` stands for."""
    head, *lines = _lines(text)
    head.expect("p-graph")
    external = head.names() if head.accept("given ") else ()
    return PrimitiveGraph(tuple(_primitive(line.line(), functions) for line in lines), external)


def _stage(line: Line, functions: Mapping[str, Any] | None) -> Any:
    kind = getattr(stages, line.head)
    known = {field.name for field in fields(kind) if field.init}
    given: dict[str, Any] = dict(zip(_INPUTS.get(line.head, ()), line.inputs, strict=False))
    told = {"inputs": line.inputs, "reads_all": line.reads_all, "output": line.output or ""}
    if line.engine is not None:
        told["engine"] = line.engine
    given |= {key: value for key, value in told.items() if key in known}
    for key, value in line.attributes:
        given[key] = _READ.get(key, lambda value: value)(_bound(value, functions))
    return kind(name=line.name, **given)


def _primitive(line: Line, functions: Mapping[str, Any] | None) -> Primitive:
    given = {key: _bound(value, functions) for key, value in line.attributes}
    return Primitive(
        name=line.name,
        instance=given.pop("instance", line.name.rpartition(".")[0]),
        kind=PrimitiveKind(line.head),
        engine=line.engine,
        inputs=line.inputs,
        output=line.output,
        after=line.after,
        depth=given.pop("depth", 0),
        size=given.pop("size", 1),
        reads_all=line.reads_all,
        attributes=tuple(
            (key, _fields(value) if key == "where" else _tuple_of_list(value))
            for key, value in given.items()
        ),
    )


def _tuple_of_list(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _bound(value: Any, functions: Mapping[str, Any] | None) -> Any:
    return (functions or {})[value.name] if isinstance(value, Reference) else value


def _read_object(found: dict[str, Any]) -> Any:
    return Input(found[INPUT_KEY]) if found.keys() == {INPUT_KEY} else found


_JSON = json.JSONDecoder(object_hook=_read_object)


def _lines(text: str) -> list[_Cursor]:
    stripped = map(str.strip, text.split("\n"))
    return [_Cursor(line) for line in stripped if line and not line.startswith("#")]


class _Cursor:
    """A place in one line, read from left to right."""

    def __init__(self, text: str) -> None:
        self._rest = text

    def line(self) -> Line:
        name = self.name()
        self.expect(":")
        head = engine = None
        inputs: tuple[str, ...] = ()
        reads_all = False
        if _HEAD.match(self._rest.lstrip(" ")):
            head = self.name()
            engine = self.name() if self.accept("@") else None
            self.expect("(")
            reads_all = self.accept("*")
            inputs = () if reads_all else self.names(end=")")
            self.expect(")")
        output = self.name() if self.accept("->") else None
        after = self.names() if self.accept("after ") else ()
        return Line(name, head, engine, inputs, reads_all, output, after, self.attributes())

    def attributes(self) -> tuple[tuple[str, Any], ...]:
        found: list[tuple[str, Any]] = []
        while match := _KEY.match(self._rest.lstrip(" ")):
            self.expect(match.group())
            found.append((match.group(1), self.value()))
        assert not self._rest.strip(" "), f"a line ends in {self._rest!r}"
        return tuple(found)

    def value(self) -> Any:
        return Reference(self.name()) if self.accept("@") else self._json()

    def name(self) -> str:
        self._rest = self._rest.lstrip(" ")
        if self._rest.startswith('"'):
            return self._json()
        match = _NAME.match(self._rest)
        assert match, f"no name: {self._rest!r}"
        self._rest = self._rest[match.end() :]
        return match.group()

    def names(self, end: str | None = None) -> tuple[str, ...]:
        if end is not None and self._rest.startswith(end):
            return ()
        found = [self.name()]
        while self.accept(","):
            found.append(self.name())
        return tuple(found)

    def accept(self, token: str) -> bool:
        rest = self._rest.lstrip(" ")
        if is_here := rest.startswith(token):
            self._rest = rest[len(token) :]
        return is_here

    def expect(self, token: str) -> None:
        assert self.accept(token), f"no {token!r}: {self._rest!r}"

    def _json(self) -> Any:
        value, end = _JSON.raw_decode(self._rest)
        self._rest = self._rest[end:]
        return value

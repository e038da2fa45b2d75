"""One line of a graph's text, as both kinds of graphs write it.

    name: HEAD@engine(input, input) -> output  after source, source  key=value key=value

Only ``name:`` is required. ``(*)`` stands for reading every value. Names that are not plain words
are quoted; values are JSON, and what JSON cannot say is ``@name``.
``{"$input": "k"}`` is what each request says as its input ``k``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from rag_accel.graph.option_inputs import INPUT_KEY, Input

_BARE = re.compile(r"[\w.?+/-][\w.?+/#-]*")
#: how deep arrays and objects may stand in each other in an attribute
MAX_NESTING = 32


@dataclass(frozen=True, slots=True)
class Reference:
    """A name in a line for an object that text cannot hold."""

    name: str

    def __str__(self) -> str:
        return f"@{quoted(self.name)}"


@dataclass(frozen=True, slots=True)
class Line:
    """The parts of one line."""

    name: str
    head: str | None = None
    engine: str | None = None
    inputs: tuple[str, ...] = ()
    reads_all: bool = False
    output: str | None = None
    after: tuple[str, ...] = ()
    attributes: tuple[tuple[str, Any], ...] = ()


class References:
    """The names of objects that text cannot hold, one for each object."""

    def __init__(self) -> None:
        self.bound: dict[str, Any] = {}
        self._given: dict[tuple[str, int], str] = {}
        self._num_wanted: dict[str, int] = {}

    def name(self, value: object, fallback: str) -> Reference:
        """Return the object's reference: its ``__name__`` if it has a usable one."""
        own = getattr(value, "__name__", "")
        wanted = own if isinstance(own, str) and own.isidentifier() else fallback
        key = wanted, id(value)
        if key not in self._given:
            self._given[key] = self._free(wanted)
            self.bound[self._given[key]] = value
        return Reference(self._given[key])

    def _free(self, wanted: str) -> str:
        name = wanted
        while name in self.bound:
            number = self._num_wanted[wanted] = self._num_wanted.get(wanted, 1) + 1
            name = f"{wanted}_{number}"
        return name

    def encode(self, value: object, fallback: str) -> object:
        """Return a value that JSON can say as it is, and anything else as a reference."""
        return value if is_json(value) else self.name(value, fallback)


def is_json(value: object) -> bool:
    """Tell whether this value can stand in a line and comes back exactly."""
    return nests_at_most(MAX_NESTING, value) and _is_json(value)


def nests_at_most(levels: int, value: object) -> bool:
    """Tell whether at most so many lists and dictionaries stand in each other."""
    inside: list[object] = [value]
    for _ in range(levels + 1):
        inside = [item for group in inside for item in _items(group)]
    return not inside


def _items(value: object) -> Iterable[object]:
    if isinstance(value, list):
        return cast("list[object]", value)
    return cast("dict[str, object]", value).values() if isinstance(value, dict) else ()


def _is_json(value: object) -> bool:
    if isinstance(value, float):
        return type(value) is float and math.isfinite(value)
    if type(value) is list:
        return all(_is_json(item) for item in cast("list[object]", value))
    if type(value) is dict:
        items = cast("dict[object, object]", value).items()
        if value.keys() == {INPUT_KEY}:  # it would come back as an input
            return False
        return all(type(key) is str and _is_json(item) for key, item in items)
    return value is None or type(value) in (bool, int, str, Input)


def quoted(name: str) -> str:
    """Return a name as it stands in a line."""
    return name if _BARE.fullmatch(name) else _dump(name)


def format_names(names: Iterable[str]) -> str:
    """Return names as a list in a line."""
    return ", ".join(quoted(name) for name in names)


def format_value(value: object) -> str:
    """Return an attribute's value as it stands in a line."""
    return str(value) if isinstance(value, Reference) else _dump(value)


def format_line(line: Line) -> str:
    does = ""
    if line.head is not None:
        at = "" if line.engine is None else f"@{quoted(line.engine)}"
        reads = "*" if line.reads_all else format_names(line.inputs)
        does = f"{line.head}{at}({reads})"
    if line.output is not None:
        does += f" -> {quoted(line.output)}"
    after = f"after {format_names(line.after)}" if line.after else ""
    told = " ".join(f"{key}={format_value(value)}" for key, value in line.attributes)
    return f"{quoted(line.name)}: " + "  ".join(part for part in (does, after, told) if part)


def _dump(value: object) -> str:
    plain = json.dumps(value, ensure_ascii=False, default=_input_object)
    return plain if plain.isprintable() else json.dumps(value, default=_input_object)


def _input_object(value: Any) -> Any:
    return {INPUT_KEY: value.name}

"""One line of a graph's text form, written and read; the grammar both text forms share.

    name: HEAD@engine(input, input) -> output  after source, source  key=value key=value

Only ``name:`` is required. ``(*)`` stands for reading every value. Names that are not plain words
are quoted; values are JSON, and what JSON cannot say is ``@name``, bound when the text is parsed.
``{"$input": "k"}`` is what each request says as its input ``k``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from rag_accel.errors import GraphError
from rag_accel.graph.nodes import listed, suggestion
from rag_accel.graph.option_inputs import INPUT_KEY, Input

_BARE = re.compile(r"[\w.?+/-][\w.?+/#-]*")
_HEAD = re.compile(r"\w+[@(]")
_KEY = re.compile(r"[A-Za-z_]\w*(?==)")


def _read_object(found: dict[str, Any]) -> Any:
    is_input = found.keys() == {INPUT_KEY} and isinstance(found[INPUT_KEY], str)
    return Input(found[INPUT_KEY]) if is_input and found[INPUT_KEY] else found


_JSON = json.JSONDecoder(object_hook=_read_object)

#: how deep arrays and objects may stand in each other in an attribute
MAX_NESTING = 32
_SHOWN = 60


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


def resolve(value: object, functions: Mapping[str, Any]) -> Any:
    """Return what a parsed value stands for.

    Raises:
        GraphError: if it refers to a name that ``functions`` lacks.
    """
    if not isinstance(value, Reference):
        return value
    if value.name not in functions:
        raise GraphError(
            "the text refers to something that was not passed",
            found=f"@{value.name}",
            valid=listed(f"@{name}" for name in functions),
            hint=suggestion(value.name, functions) or "pass it in functions=",
        )
    return functions[value.name]


def is_json(value: object) -> bool:
    """Tell whether this value can stand in a line and comes back exactly."""
    return nests_at_most(MAX_NESTING, value) and _is_json(value)


def nests_at_most(levels: int, value: object) -> bool:
    """Tell whether at most so many lists and dictionaries stand in each other."""
    inside: list[object] = [value]
    for _ in range(levels + 1):
        inside = [item for group in inside for item in _items(group)]
    return not inside


def shown(value: object) -> str:
    """Return the beginning of a value's ``repr`` for an error."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


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
    """Return the text of a line."""
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


def parse_line(text: str, number: int = 1) -> Line:
    """Return the parts of a line; ``number`` is told in errors.

    Raises:
        GraphError: if the text does not follow the grammar.
    """
    cursor = Cursor(text, number)
    name = cursor.name()
    cursor.expect(":")
    head = engine = output = None
    inputs: tuple[str, ...] = ()
    reads_all = False
    if cursor.ahead(_HEAD):
        head = cursor.name()
        engine = cursor.name() if cursor.accept("@") else None
        cursor.expect("(")
        reads_all = cursor.accept("*")
        inputs = () if reads_all else cursor.names(end=")")
        cursor.expect(")")
    if cursor.accept("->"):
        output = cursor.name()
    after = cursor.names() if cursor.accept("after ") else ()
    return Line(name, head, engine, inputs, reads_all, output, after, cursor.attributes())


def numbered_lines(text: str) -> list[tuple[int, str]]:
    """Return the lines that say something, with their numbers; ``#`` begins a comment line."""
    lines = enumerate(text.split("\n"), 1)
    stripped = ((number, line.strip()) for number, line in lines)
    return [(number, line) for number, line in stripped if line and not line.startswith("#")]


class Cursor:
    """A place in one line, read from left to right; white space between parts does not count."""

    def __init__(self, text: str, number: int) -> None:
        self._text = text
        self._number = number
        self._at = 0

    def name(self) -> str:
        """Read a plain or quoted name."""
        self._skip()
        if self._text.startswith('"', self._at):
            return str(self._json())
        match = _BARE.match(self._text, self._at)
        if match is None:
            self.fail("a name")
        self._at = match.end()
        return match.group()

    def names(self, end: str | None = None) -> tuple[str, ...]:
        """Read names separated by commas, none at all if ``end`` stands here."""
        if end is not None and self.ahead(re.compile(re.escape(end))):
            return ()
        found = [self.name()]
        while self.accept(","):
            found.append(self.name())
        return tuple(found)

    def attributes(self) -> tuple[tuple[str, Any], ...]:
        """Read ``key=value`` pairs to the end of the line."""
        found: list[tuple[str, Any]] = []
        while (match := self.ahead(_KEY)) is not None:
            self._at = match.end() + 1
            found.append((match.group(), self.value()))
        self.finish()
        return tuple(found)

    def value(self) -> Any:
        """Read a JSON value or a reference."""
        return Reference(self.name()) if self.accept("@") else self._json()

    def accept(self, token: str) -> bool:
        """Step over ``token`` if it stands here."""
        self._skip()
        found = self._text.startswith(token, self._at)
        self._at += len(token) if found else 0
        return found

    def expect(self, token: str) -> None:
        """Step over ``token``, which must stand here."""
        if not self.accept(token):
            self.fail(repr(token))

    def ahead(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Match ``pattern`` here without stepping."""
        self._skip()
        return pattern.match(self._text, self._at)

    def finish(self) -> None:
        """Demand the end of the line."""
        self._skip()
        if self._at < len(self._text):
            self.fail("the end of the line")

    def fail(self, valid: str) -> NoReturn:
        """Raise the error of what was expected here."""
        raise GraphError(
            "cannot read a line of the graph's text",
            where=f"line {self._number}, column {self._at + 1}",
            found=repr(self._text[self._at : self._at + 24]),
            valid=valid,
        )

    def _skip(self) -> None:
        while self._text.startswith(" ", self._at):
            self._at += 1

    def _json(self) -> Any:
        try:
            value, end = _JSON.raw_decode(self._text, self._at)
        except ValueError:
            self.fail("a JSON value")
        except RecursionError:
            value, end = None, -1
        if end < 0 or not nests_at_most(MAX_NESTING, value):
            self.fail(f"a JSON value with at most {MAX_NESTING} arrays and objects in each other")
        self._at = end
        return value


def _dump(value: object) -> str:
    plain = json.dumps(value, ensure_ascii=False, default=_input_object)
    return plain if plain.isprintable() else json.dumps(value, default=_input_object)


def _input_object(value: Any) -> Any:
    return {INPUT_KEY: value.name}

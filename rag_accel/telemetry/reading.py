"""Events read back from the file of a ``JsonLinesSink``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, cast, get_args

from rag_accel.errors import ConfigError
from rag_accel.telemetry import events
from rag_accel.telemetry.events import EVENT_TYPES, TraceEvent

_KINDS = {kind.__name__: kind for kind in EVENT_TYPES}
#: a list of members is the deepest that stands in a field
_LEVELS = 2


def read_json_lines(path: str | os.PathLike[str]) -> tuple[TraceEvent, ...]:
    """Return the events of a file, in its order.

    A last line without an end is left out: its writer was stopped in the middle of it.

    Raises:
        ConfigError: if the file cannot be read, or a line of it is no event; names the line.
    """
    source = Path(path)
    try:
        lines = source.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(
            "the trace file cannot be read", where=str(path), found=type(error).__name__
        ) from error
    return tuple(
        _event(line, f"{path}, line {number}")
        for number, line in enumerate(lines[:-1], start=1)
        if line.strip()
    )


def from_record(record: object, where: str | None = None) -> TraceEvent:
    """Return the event that ``to_record`` made this record of.

    Raises:
        ConfigError: if it is no record of an event.
    """
    if not isinstance(record, dict):
        raise _no_event(where, type(record).__name__, "a JSON object")
    parts = cast("dict[str, Any]", record)
    name = parts.get("event")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        found = repr(name) if name is None or isinstance(name, str) else type(name).__name__
        raise _no_event(where, found, ", ".join(_KINDS))
    specs = {spec.name: spec for spec in fields(kind)}
    unknown = sorted(parts.keys() - specs.keys() - {"event"})
    if unknown:
        raise _no_event(where, f"{name}.{unknown[0]}", ", ".join(specs))
    return kind(**{spec.name: _value(spec, parts, where) for spec in specs.values()})


def _event(line: bytes, where: str) -> TraceEvent:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _no_event(where, type(error).__name__, "one JSON object a line") from error
    return from_record(record, where)


def _value(spec: Field[Any], parts: dict[str, Any], where: str | None) -> Any:
    if spec.name not in parts:
        if spec.default is MISSING:
            raise _no_event(where, f"no {spec.name}", "every field without a default")
        return spec.default
    value = _tuples(parts[spec.name], _LEVELS)
    if not _FITS[str(spec.type)](value):
        raise _no_event(where, f"{spec.name} = {type(value).__name__}", str(spec.type))
    return float(value) if spec.type == "float" else value


def _tuples(value: Any, levels: int) -> Any:
    """Return lists as tuples; those below so many levels stay lists, which fit no field."""
    if levels and isinstance(value, list):
        return tuple(_tuples(item, levels - 1) for item in cast("list[Any]", value))
    return value


def _no_event(where: str | None, found: str, valid: str) -> ConfigError:
    return ConfigError("not a recorded trace event", where=where, found=found, valid=valid)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (_is_whole(value) and abs(value) <= sys.float_info.max)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_id(value: Any) -> bool:
    return _is_whole(value) or isinstance(value, str)


def _is_member(value: Any) -> bool:
    if not isinstance(value, tuple):
        return False
    parts = cast("tuple[Any, ...]", value)
    return len(parts) == 2 and _is_id(parts[0]) and isinstance(parts[1], str)


def _all(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple) and all(map(fits, cast("tuple[Any, ...]", value)))


def _or_none(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _one_of(words: Any) -> Callable[[Any], bool]:
    return lambda value: value in get_args(words)


#: checks of a field's value, by its type as written
_FITS: dict[str, Callable[[Any], bool]] = {
    "float": _is_number,
    "int": _is_whole,
    "int | None": _or_none(_is_whole),
    "bool": lambda value: isinstance(value, bool),
    "str": _is_text,
    "str | None": _or_none(_is_text),
    "RequestId": _is_id,
    "Member": _is_member,
    "tuple[Member, ...]": _all(_is_member),
    "tuple[str, ...]": _all(_is_text),
    "Outcome": _one_of(events.Outcome),
    "Origin": _one_of(events.Origin),
}

"""Answers of programs as JSON values, and JSON of clients as values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn

from rag_accel.errors import EngineOutputError, ServedRequestError

MOST_DEPTH = 32
"""Most containers within each other in a client's JSON."""

MOST_CONTAINERS = 10_000
"""Most lists and objects in a client's JSON; each costs much more than its two bytes."""

#: a text, which ends with the body if nothing else ends it: linear whatever the body
_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body.

    Raises:
        ServedRequestError: no JSON, no object, NaN, a number or a text that cannot be one, or more
            than ``MOST_CONTAINERS`` containers or ``MOST_DEPTH`` levels.
    """
    # Before it is read: reading holds the interpreter, and so all other threads.
    if _num_opened(body) > MOST_CONTAINERS and _num_opened(_TEXT.sub(b"", body)) > MOST_CONTAINERS:
        raise ServedRequestError(
            "the JSON of the body has too many lists and objects",
            valid=f"at most {MOST_CONTAINERS}",
        )
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
        if not isinstance(value, dict):
            raise ServedRequestError(
                "the body is no JSON object", found=type(value).__name__, valid='{"input": "..."}'
            )
        _check(value)
    except ServedRequestError:
        raise
    except (ValueError, RecursionError) as error:
        found = type(error).__name__ if isinstance(error, RecursionError) else str(error)
        raise ServedRequestError(
            "the body cannot be read as JSON", found=found[:200], valid="JSON in UTF-8"
        ) from None
    return value


def _num_opened(body: bytes) -> int:
    return body.count(b"[") + body.count(b"{")


def _refuse_constant(name: str) -> NoReturn:
    raise ServedRequestError("the body holds a number that JSON has not", found=name)


def _check(value: Any) -> None:
    """Refuse what later code could not take: deep nesting, infinite numbers, half characters."""
    level: list[Any] = [value]
    for _ in range(MOST_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner += [*item, *item.values()]
            elif isinstance(item, list):
                inner += item
            elif isinstance(item, str):
                item.encode()  # UnicodeEncodeError, a ValueError, of half a surrogate pair
            elif isinstance(item, float) and not math.isfinite(item):
                raise ServedRequestError("the body holds a number that is too large")
        if not inner:
            return
        level = inner
    raise ServedRequestError(
        "the body is nested too deeply", valid=f"at most {MOST_DEPTH - 1} levels"
    )


def as_json(value: Any) -> Any:
    """Return an answer as JSON values: models of pydantic and dataclasses become objects.

    Raises:
        EngineOutputError: a value of it is none of these.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "model_dump"):
        return as_json(value.model_dump(mode="json"))
    if isinstance(value, Mapping):
        return {str(name): as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple | Set):
        return [as_json(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    listed: Any = getattr(value, "tolist", None)  # of an array or a number of NumPy
    if listed is not None:
        return as_json(listed())
    raise EngineOutputError(
        "an answer cannot be written as JSON",
        found=f"{type(value).__module__}.{type(value).__qualname__}",
        valid="text, numbers, lists, mappings, dataclasses and models of pydantic",
    )


def as_answer_text(value: Any) -> str:
    """Return an answer as a chat shows it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(as_json(value), ensure_ascii=False)

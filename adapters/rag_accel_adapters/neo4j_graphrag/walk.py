"""The inside of a neo4j-graphrag program: which objects it holds, and at which positions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

#: The attributes of a program, or of a retriever, that hold what does its work.
_HOLDING = ("retriever", "embedder", "llm", "_tools")


def walk(obj: Any, path: str = "program") -> Iterator[tuple[str, Any]]:
    """Yield each object of a program and its path, once; those that hold it come before it."""
    waiting, seen = deque([(path, obj)]), {id(obj)}
    while waiting:
        path, found = waiting.popleft()
        yield path, found
        for name, part in _parts(found):
            if id(part) not in seen:
                seen.add(id(part))
                waiting.append((f"{path}.{name}", part))


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    held = getattr(obj, "__dict__", {})
    for name in _HOLDING:
        value = held.get(name)
        if isinstance(value, list):
            for place, tool in enumerate(value):
                yield f"{name.strip('_')}.{place}", _asked_by(tool)
        elif value is not None:
            yield name, value


def _asked_by(tool: Any) -> Any:
    """Return the retriever that a tool was made of; a tool of another kind is itself."""
    function = getattr(tool, "_execute_func", None)
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = getattr(function, "__closure__", None) or ()
    return cells[0].cell_contents if names == ("self",) and len(cells) == 1 else tool

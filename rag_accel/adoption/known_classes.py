"""Whether a class is one that is known by name, or does what that one does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

#: returns a class's method as its program wrote it
PlainMethod = Callable[[type, str], Any]


def full_name(cls: type) -> str:
    """Return a class's module and name."""
    return f"{cls.__module__}.{cls.__qualname__}"


def does_the_same(cls: type, known: type, names: Sequence[str], method: PlainMethod) -> bool:
    """Tell whether ``cls`` has these methods from ``known``, which is one of its bases."""
    return all(_unbound(method(cls, name)) is _unbound(method(known, name)) for name in names)


def _unbound(method: Any) -> Any:
    """Return a method as it stands in its class: a decorator of wrapt's binds it for each look."""
    return getattr(method, "_self_parent", method)


def is_written_in(module: Any, function: object) -> bool:
    """Tell whether a function was written in a module; a wrapper was written in its own."""
    # Not a proxy, which shows the attributes of what it wraps.
    return type(function) is FunctionType and function.__globals__ is vars(module)

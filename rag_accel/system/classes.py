"""Classes known by name, and subclasses that behave the same."""

from __future__ import annotations

import sys
from collections.abc import Container, Sequence
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from rag_accel.system.methods import plain_method


def known_base(cls: type, known: Container[str]) -> type | None:
    """Return the class itself, or the nearest base, whose full name is among these."""
    return next((base for base in cls.__mro__ if full_name(base) in known), None)


def full_name(named: type | FunctionType) -> str:
    """Return the module and name of a class or function."""
    return f"{named.__module__}.{named.__qualname__}"


def does_the_same(cls: type, known: type, names: Sequence[str]) -> bool:
    """Tell whether ``cls`` has these methods from ``known``, which is one of its bases."""
    return all(_unbound(cls, name) is _unbound(known, name) for name in names)


def _unbound(cls: type, name: str) -> Any:
    """Return a method as it stands in its class: a decorator of wrapt's binds it for each look."""
    method = plain_method(cls, name)
    return getattr(method, "_self_parent", method)


def is_written_in(module: Any, function: object) -> bool:
    """Tell whether a function was written in a module; a wrapper was written in its own."""
    # Not a proxy, which shows the attributes of what it wraps.
    return type(function) is FunctionType and function.__globals__ is vars(module)


class NamedClasses(type):
    """The type of a base class whose subclasses are known by name, so that nothing imports them.

    A class that is so made says ``names``, the full names of module-level classes; each of these
    and all that derive from it count as its subclasses, for ``issubclass`` and ``isinstance``.
    """

    names: tuple[str, ...]
    _seen: WeakKeyDictionary[type, bool]

    def __new__(
        mcs, name: str, bases: tuple[type, ...], body: dict[str, Any], names: tuple[str, ...]
    ) -> NamedClasses:
        made = super().__new__(mcs, name, bases, body)
        made.names, made._seen = names, WeakKeyDictionary()
        return made

    def __init__(cls, *made_of: Any, names: tuple[str, ...]) -> None:
        super().__init__(*made_of)

    def __subclasscheck__(cls, other: type) -> bool:
        found = cls._seen.get(other)
        if found is None:
            found = cls._seen[other] = any(full_name(base) in cls.names for base in other.__mro__)
        return found

    def __instancecheck__(cls, obj: Any) -> bool:
        return cls.__subclasscheck__(type(obj))

    def imported(cls) -> list[type]:
        """Return the classes of these names that the program has imported by now."""
        found = (_imported(name) for name in cls.names)
        return [cls for cls in found if cls is not None]

    def awaited(cls) -> list[str]:
        """Return the modules of those that it has not."""
        return [name.rpartition(".")[0] for name in cls.names if _imported(name) is None]


def _imported(name: str) -> type | None:
    module, _, attribute = name.rpartition(".")
    # Not from the module itself: it may import on demand what it is asked for.
    found = getattr(sys.modules.get(module), "__dict__", {}).get(attribute)
    return found if isinstance(found, type) and full_name(found) == name else None

"""Methods of a library's classes that are the ones its modules wrote, looked at in each call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from rag_accel.adoption.known_classes import NotAdoptedError
from rag_accel.system.classes import is_written_in
from rag_accel.system.methods import cell_of_traced, plain_method, traced, unpatched

#: Of a class, each place where one of the methods may stand: the number of the base, the name, and
#: what was found there.
_Places = tuple[tuple[int, str, Any], ...]
_ABSENT = object()
#: returns a class's method as its program wrote it
PlainMethod = Callable[[type, str], Any]


class WrittenMethods:
    """Methods by which a class's objects do what an engine of ours computes in their place.

    A test, a tracer or a program may replace any of them, in a class or on an object, at any time.
    Then the object's own method is to run.

    Args:
        leaves: those that an engine's work stands for, in whatever decorators they are that bind
            by themselves or are a known tracer's: these stand around that work, too.
        inner: those that these call.
    """

    def __init__(self, leaves: Sequence[str], inner: Sequence[str] = ()) -> None:
        self._leaves = frozenset(leaves)
        self._names = (*leaves, *inner)
        self._seen: WeakKeyDictionary[type, _Places] = WeakKeyDictionary()

    def check(self, obj: Any, cls: type) -> None:
        """Check that nothing has replaced one of them, but tracers that stand around leaves.

        Raises:
            NotAdoptedError: something has.
        """
        if not self.are_plain(obj, cls):
            raise NotAdoptedError(f"a method of {cls.__name__} is replaced, or of the object")

    def are_plain(self, obj: Any, cls: type, method: PlainMethod = plain_method) -> bool:
        """Tell whether nothing has replaced one of them.

        Args:
            obj: the object.
            cls: its plain class.
            method: returns a class's method as its program wrote it.
        """
        if not vars(obj).keys().isdisjoint(self._names):
            return False
        seen = self._seen.get(cls)
        if seen is not None:
            bases = cls.__mro__
            for at, name, value in seen:
                if bases[at].__dict__.get(name, _ABSENT) is not value:
                    break
            else:
                return True
        return self._look(cls, method)

    def _look(self, cls: type, method: PlainMethod) -> bool:
        places: list[tuple[int, str, Any]] = []
        for name in self._names:
            for at, base in enumerate(cls.__mro__):
                value = vars(base).get(name, _ABSENT)
                places.append((at, name, value))
                if value is _ABSENT:
                    continue
                found = method(cls, name)
                if name in self._leaves:
                    found = _undecorated(found)
                if not _is_written(base, name, found):
                    return False
                break
        self._seen[cls] = tuple(places)
        return True


def _undecorated(method: Any) -> Any:
    while True:
        if isinstance(method, FunctionType) and type(method) is not FunctionType:
            method = getattr(method, "__wrapped__", None)
        elif cell_of_traced(method) is not None:
            method = unpatched(traced(method))  # which it may have been put around
        else:
            return method


def _is_written(cls: type, name: str, method: Any) -> bool:
    """Tell whether a class's method is the one that the class's module wrote."""
    module = sys.modules.get(cls.__module__)
    if _repeats_another(method):
        method = method.__wrapped__
    if module is None or not is_written_in(module, method):
        return False
    return method.__code__.co_qualname == f"{cls.__qualname__}.{name}"


def _repeats_another(method: Any) -> bool:
    """Tell whether this is a function of tenacity's, which calls another one until it succeeds."""
    return (
        type(method) is FunctionType
        and method.__globals__.get("__name__") == "tenacity"
        and hasattr(method, "__wrapped__")
    )

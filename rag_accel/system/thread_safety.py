"""Thread safety of everything a call may use, judged by known classes.

Every check walks the object and everything it holds: what a program changes in it counts
from the next call on.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any

from rag_accel.system.classes import full_name
from rag_accel.system.methods import plain_class

#: The most objects looked at for one call; one that holds more is not known to be safe.
MAX_OBJECTS = 2000

#: returns what an object's calls may use, ``None`` if it is not to be called
Look = Callable[[Any], "Iterable[object] | None"]

#: what is to be done in a thread before objects are used there
Preparation = Callable[[], object]

_DATA = frozenset({NoneType, bool, int, float, complex, str, bytes, range})


def class_names(table: str) -> frozenset[str]:
    """Return the full names of classes, in lines of a module and the names of its classes.

    A line that begins with a hash says why the next ones are there.
    """
    rows = (line.split() for line in table.splitlines() if line.strip())
    named = (row for row in rows if row[0] != "#")
    return frozenset(f"{module}.{name}" for module, *names in named for name in names)


def prepare_nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class ThreadSafety:
    """A framework's thread-safe and unsafe classes, by their full names.

    Args:
        opaque: classes whose objects may be called from several threads.
        composed: classes for whose objects that holds if it holds for everything in their state.
        looping: such classes whose plain methods run coroutines in loops of their own.
        loop_bound: such classes whose coroutines share connections that belong to one loop.
        packages: those whose functions and classes keep no state of their own.
        looks: for some of these classes, what returns what is to be looked at instead of all that
            an object holds; ``None`` if this one may not be called.
        shared: returns what objects use that were given nothing of the kind.
        prepare: returns what is to be done in a thread before objects of these classes are used
            there, or why they cannot be.
    """

    opaque: frozenset[str]
    composed: frozenset[str]
    packages: tuple[str, ...]
    looping: frozenset[str] = frozenset()
    loop_bound: frozenset[str] = frozenset()
    looks: Mapping[str, Look] = field(default_factory=dict[str, Look])
    shared: Callable[[], Iterable[object]] = tuple
    prepare: Callable[[Collection[str]], Preparation | str] = lambda classes: prepare_nothing

    def check(self, roots: Iterable[object], named: Collection[str]) -> Preparation | str:
        """Return what is to be done in a thread before these objects are used there.

        A text says why they, all they hold and what all share may not be called from several
        threads, and what would change that.

        Args:
            roots: the objects.
            named: full names of further classes and functions that are thread-safe.
        """
        classes = set[str]()
        obstacle = self._look([*roots, *self.shared()], named, classes)
        return self.prepare(classes) if obstacle is None else obstacle

    def _look(
        self, roots: Iterable[object], named: Collection[str], classes: set[str]
    ) -> str | None:
        """Add the classes found to ``classes`` up to an obstacle, and return that."""
        waiting, seen = list(roots), dict[int, object]()
        while waiting:
            obj = waiting.pop()
            if type(obj) in _DATA or id(obj) in seen:
                continue
            seen[id(obj)] = obj  # kept: the id of one made meanwhile is not another's
            cls = _without_arguments(plain_class(type(obj)))
            held = self._held(obj, cls, named)
            if held is None:
                return (
                    f"{_name_of(obj, cls)} is not known to be thread-safe (if it is, list it in"
                    " thread_safe_classes)"
                )
            if len(seen) > MAX_OBJECTS:
                return f"it holds more than {MAX_OBJECTS} objects"
            classes.add(full_name(cls))
            waiting.extend(held)
        if self.looping.isdisjoint(classes) or self.loop_bound.isdisjoint(classes):
            return None
        bound = ", ".join(sorted(self.loop_bound & classes))
        return f"connections of {bound} belong to one loop"

    def _held(self, obj: Any, cls: type, named: Collection[str]) -> Iterable[object] | None:
        """Return what an object that is known holds; ``None`` for one that is not."""
        if cls in (list, tuple, set, frozenset):
            return obj
        if cls in (dict, defaultdict):
            return (*obj.keys(), *obj.values())
        if isinstance(obj, type | FunctionType) and full_name(obj) in named:
            return ()
        look = _CALLABLES.get(cls)
        if look is not None:
            return look(obj, self.packages)
        if isinstance(obj, type):
            return () if _is_of(obj, (*self.packages, "builtins")) else None
        if isinstance(obj, Enum | ModuleType):
            return ()
        return self._look_at(obj, cls, named)

    def _look_at(self, obj: Any, cls: type, named: Collection[str]) -> Iterable[object] | None:
        name = full_name(cls)
        if name in named:
            return ()
        is_opaque = name in self.opaque
        if not is_opaque and not any(
            name in known for known in (self.composed, self.looping, self.loop_bound)
        ):
            return None
        if getattr(sys.modules.get(cls.__module__), cls.__qualname__, None) is not cls:
            return None  # another of the same name
        return () if is_opaque else self.looks.get(name, state_of)(obj)


def _without_arguments(cls: type) -> type:
    """Return the class that was given type arguments, of which pydantic makes another class."""
    return getattr(cls, "__pydantic_generic_metadata__", {}).get("origin") or cls


def _name_of(obj: Any, cls: type) -> str:
    """Return the name of a function or class, or else of an object's class."""
    named: Any = obj if isinstance(obj, type | FunctionType) else cls
    return full_name(named)


def state_of(obj: Any) -> list[object]:
    """Return the values of an object's attributes, those private to a pydantic model too."""
    return list(attributes_of(obj).values())


def attributes_of(obj: Any) -> dict[str, object]:
    """Return an object's attributes by name, those private to a pydantic model too."""
    return {**vars(obj), **(getattr(obj, "__pydantic_private__", None) or {})}


def _is_of(thing: Any, packages: tuple[str, ...]) -> bool:
    module = thing.__module__ or ""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _of_function(function: Any, packages: tuple[str, ...]) -> Iterable[object] | None:
    if not _is_of(function, packages):
        return None
    return [cell.cell_contents for cell in function.__closure__ or ()]


def _of_method(method: Any, packages: tuple[str, ...]) -> Iterable[object]:
    owner, function = method.__self__, method.__func__
    is_its_own = getattr(type(owner), function.__name__, None) is function
    return (owner,) if is_its_own else (owner, function)


def _of_partial(call: Any, packages: tuple[str, ...]) -> Iterable[object]:
    return (call.func, *call.args, *call.keywords.values())


def _of_builtin(function: Any, packages: tuple[str, ...]) -> Iterable[object]:
    owner = function.__self__
    return () if owner is None or isinstance(owner, ModuleType) else (owner,)


_CALLABLES: Mapping[type, Callable[[Any, tuple[str, ...]], Iterable[object] | None]] = {
    FunctionType: _of_function,
    MethodType: _of_method,
    partial: _of_partial,
    BuiltinFunctionType: _of_builtin,
}

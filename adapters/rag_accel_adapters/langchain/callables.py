"""Objects that a callable reaches by closures, globals, bound objects, partials and helpers.

Reads code and cells, runs nothing. What a callable computes, or takes from a container when it
runs, stays unknown.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import CodeType, FunctionType, MethodType
from typing import Any

#: entries looked at in one container; programs hold few models, stores hold many documents
MAX_ITEMS = 64

Named = Iterator[tuple[str, Any]]
IsWanted = Callable[[Any], bool]


def held_by(function: Any, is_wanted: IsWanted) -> Named:
    """Yield the wanted objects that a callable can reach by itself, each with a path to it."""
    yield from _held(function, is_wanted, set())


def wanted_in(values: Mapping[str, Any], is_wanted: IsWanted) -> Named:
    """Yield what is wanted among named values, and up to two levels inside of the others."""
    for name, value in values.items():
        yield from _search(name, value, is_wanted, 2)


def _search(name: str, value: Any, is_wanted: IsWanted, depth: int) -> Named:
    if is_wanted(value):
        yield name, value
    elif depth > 0:
        for key, item in _items(value):
            yield from _search(f"{name}{key}", item, is_wanted, depth - 1)


def _held(function: Any, is_wanted: IsWanted, seen: set[int]) -> Named:
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, functools.partial):
        yield from wanted_in({"args": function.args, **function.keywords}, is_wanted)
        yield from _held(function.func, is_wanted, seen)
        return
    owner = getattr(function, "__self__", None)
    if owner is not None:
        yield from wanted_in({"self": owner}, is_wanted)
    inner = inspect.unwrap(getattr(function, "__func__", function))
    if not inspect.isfunction(inner):
        call = getattr(type(inner), "__call__", None)  # noqa: B004 - the function itself is needed
        if inspect.isfunction(call):
            yield from wanted_in({"self": inner}, is_wanted)
            yield from _held(call, is_wanted, seen)
        return
    around = _wrappers(function)  # a decorator's own function may hold something, too
    variables = {key: value for one in around for key, value in free_variables(one).items()}
    variables |= {**_defaults(inner), **free_variables(inner), **_globals(inner)}
    yield from wanted_in(variables, is_wanted)
    for name, value in variables.items():
        if _is_helper(value, inner):
            yield from ((f"{name}.{k}", v) for k, v in _held(value, is_wanted, seen))


def _is_helper(value: Any, function: Any) -> bool:
    """Tell whether a function that another one names belongs to the same program."""
    if not issubclass(type(value), FunctionType | MethodType | functools.partial):
        # An object that stands for a function of the program, as a task of a workflow does.
        value = _attribute(value, "__wrapped__")
        if not isinstance(value, FunctionType):
            return False
    target = getattr(value, "__func__", value)
    inner = inspect.unwrap(target) if not isinstance(target, functools.partial) else None
    return inner is None or getattr(inner, "__globals__", None) is function.__globals__


def free_variables(function: Any) -> dict[str, Any]:
    """Return what a function's closure holds, by name, so far as it is bound."""
    found: dict[str, Any] = {}
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    return found


def _attribute(obj: Any, name: str) -> Any:
    try:
        return obj.__dict__.get(name)
    except Exception:  # it has no attributes, or is a proxy that stands for nothing yet
        return None


def _wrappers(function: Any) -> Iterator[Any]:
    """Yield the functions that a decorator put around another, outermost first."""
    while isinstance(function, FunctionType) and "__wrapped__" in function.__dict__:
        yield function
        function = function.__dict__["__wrapped__"]


def _defaults(function: Any) -> dict[str, Any]:
    values = function.__defaults__ or ()
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    positional = names[len(names) - len(values) :]
    return {**dict(zip(positional, values, strict=True)), **(function.__kwdefaults__ or {})}


def _globals(function: Any) -> dict[str, Any]:
    scope = function.__globals__
    return {name: scope[name] for name in _names(function.__code__) if name in scope}


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:  # comprehensions and functions defined inside
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _items(value: Any) -> list[tuple[str, Any]]:
    """Return what a container or an object of the user's own holds."""
    try:
        if isinstance(value, list | tuple):
            return [(str(index), item) for index, item in enumerate(value[:MAX_ITEMS])]
        if inspect.ismodule(value) or inspect.isclass(value) or inspect.isroutine(value):
            return []
        held = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
        return [(f".{key}", item) for key, item in islice(held.items(), MAX_ITEMS)]
    except Exception:  # a proxy that stands for nothing yet does not even say its class
        return []

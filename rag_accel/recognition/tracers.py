"""Wrappers that known tracers put around methods of libraries.

A tracer records a call and changes nothing of what it sends or returns, but it reads the context of
whoever calls. Work of several callers may pass one in a context that is nobody's.
"""

from __future__ import annotations

import functools
import os
import sys
from types import CellType, FunctionType, MethodType
from typing import Any

#: Modules in whose folders the wrappers of tracers stand.
TRACERS = (
    "ddtrace",
    "langfuse",
    "openinference.instrumentation",
    "opentelemetry.instrumentation",
    "sentry_sdk",
)


def traced(wrapper: Any) -> Any | None:
    """Return what a known tracer's wrapper stands around; ``None`` for anything else."""
    inner = getattr(wrapper, "__wrapped__", None)
    if inner is None and getattr(wrapper, "__closure__", None) is None:  # of most methods
        return None
    if not is_tracers(getattr(wrapper, "_self_wrapper", wrapper)):
        return None
    if inner is not None or type(wrapper) is not FunctionType:
        return inner
    cells = (_content(cell) for cell in wrapper.__closure__ or ())
    functions = [found for found in cells if isinstance(found, FunctionType)]
    return functions[0] if len(functions) == 1 else None


def is_tracers(function: Any) -> bool:
    """Tell whether a function, or an object that is called like one, is a known tracer's."""
    code = getattr(_plain(function), "__code__", None)
    if code is None or not code.co_filename.startswith(_homes()):
        return False
    # A program's hook, as of OpenTelemetry's instrumentors, may write who calls into a request.
    given: tuple[Any, ...] = ()
    if isinstance(function, functools.partial):
        given = (*function.args, *function.keywords.values())
    return all(is_tracers(one) for one in given if isinstance(one, FunctionType | MethodType))


def module_of(function: Any) -> str:
    """Return the module that a function, or an object that is called like one, was written in."""
    wrapper = _plain(getattr(function, "_self_wrapper", function))
    # Not ``__module__``, which ``functools.wraps`` copies from the function that it wraps.
    return getattr(wrapper, "__globals__", {}).get("__name__") or type(function).__module__


def cell_of_traced(wrapper: Any) -> CellType | None:
    """Return the cell from which a tracer's function calls the function that it stands around."""
    inner = traced(wrapper)
    if inner is None or type(wrapper) is not FunctionType:
        return None
    cells = wrapper.__closure__ or ()
    return next((cell for cell in cells if _content(cell) is inner), None)


def retraced(wrapper: FunctionType, inner: Any) -> FunctionType:
    """Return a tracer's function around another inner one."""
    cell = cell_of_traced(wrapper)
    assert cell is not None, "the caller looks for the cell first"
    cells = tuple(CellType(inner) if one is cell else one for one in wrapper.__closure__ or ())
    made = FunctionType(
        wrapper.__code__, wrapper.__globals__, wrapper.__name__, wrapper.__defaults__, cells
    )
    made.__kwdefaults__ = wrapper.__kwdefaults__
    functools.update_wrapper(made, inner, updated=())
    return made


def _plain(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    if type(function) is MethodType:
        return function.__func__
    if type(function) is FunctionType:
        return function
    return next(filter(None, (vars(cls).get("__call__") for cls in type(function).__mro__)), None)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet filled
        return None


def _homes() -> tuple[str, ...]:
    """Return the folders of the tracers that are imported; some are namespaces of several."""
    modules = (sys.modules.get(name) for name in TRACERS)
    return tuple(path + os.sep for module in modules for path in getattr(module, "__path__", ()))

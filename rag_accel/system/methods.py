"""Methods as a program wrote them: under decorators, known tracers and our wrappers.

A tracer records a call and changes nothing of what it sends or returns, but it reads the context of
whoever calls. Work of several callers may pass one in a context that is nobody's.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import inspect
import os
import sys
import textwrap
from collections.abc import Callable
from functools import cache
from types import CellType, FunctionType, MethodType
from typing import Any


@cache
def digest_of(function: Any) -> str:
    """Return what tells a function's code apart from any other's; empty if it cannot be read.

    Layout, comments and docstrings do not count.
    """
    tree = syntax_of(function)
    if tree is None:
        return ""
    for node in ast.walk(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:16]


def syntax_of(function: Any) -> ast.Module | None:
    """Return the syntax tree of a function's source, which is the caller's; None without one."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return None


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


Method = Callable[..., Any]

_ORIGINAL = "__rag_accel_original__"


def is_decorated(method: Any) -> bool:
    """Tell whether this stands for a function and binds it by itself, as wrapt's decorators do."""
    is_like_a_function = isinstance(method, FunctionType) and type(method) is not FunctionType
    return is_like_a_function and hasattr(method, "__wrapped__")


def called_on(method: Method) -> Method:
    """Return a function that calls a method on its first argument, bound first if it is decorated.

    A decorator that is called unbound looks for the object among the arguments and binds itself,
    which costs it more.
    """
    if not is_decorated(method):
        return method
    bind: Callable[[Any, type], Method] = method.__get__

    def call(obj: Any, *args: Any, **kwargs: Any) -> Any:
        return bind(obj, type(obj))(*args, **kwargs)

    return call


def undecorated(method: Any) -> Any:
    """Return the function that such decorators, and tracers, stand around; all bindings share it.

    A tracer's function counts where another can be put in the place of what it calls.
    """
    while is_decorated(method) or cell_of_traced(method) is not None:
        method = method.__wrapped__
    return method


def decorated_as(original: Method, method: Method) -> Method:
    """Return a method in the decorators of another, those that ``undecorated`` takes off."""
    if cell_of_traced(original) is not None:
        return retraced(original, decorated_as(original.__wrapped__, method))  # type: ignore[attr-defined, arg-type]
    around = getattr(original, "_self_wrapper", None) if is_decorated(original) else None
    if around is None:
        return method
    inner = decorated_as(original.__wrapped__, method)  # type: ignore[attr-defined]

    @functools.wraps(undecorated(original))
    def named(self: Any, *args: Any, **kwargs: Any) -> Any:
        return inner(self, *args, **kwargs)

    def decorated(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(MethodType(named, self), self, args, kwargs)

    return decorated


def unpatched(method: Any) -> Any:
    """Return the function under our wrapper; any other function is its own."""
    found = getattr(method, _ORIGINAL, None)
    return found[1] if type(found) is tuple and found[0] is method else method


def plain_method(cls: type, name: str) -> Any:
    """Return the method as the program wrote it, also while its class is patched."""
    method = getattr(cls, name, None)
    # ``functools.wraps`` copies attributes: somebody's wrapper of our wrapper is not ours.
    original = unpatched(method)
    if original is method:
        return method
    # As the class would give it: a decorator that binds by itself must learn of the object.
    return original.__get__(None, cls) if is_decorated(original) else original


def plain_class(cls: type) -> type:
    """Return the class a twin's class was made from; any other class is its own."""
    # Before it stands the base that keeps hooks for subclasses from running.
    return cls.__mro__[2] if cls.__dict__.get("__rag_accel__", False) else cls


def mark_as(method: Method, wrapper: Method) -> None:
    """Note in a method that it wraps what another does; nothing if that wraps nothing."""
    original = unpatched(wrapper)
    if original is not wrapper:
        setattr(method, _ORIGINAL, (method, original))


def mark(wrapper: Method, original: Method) -> Method:
    """Store the wrapped function in its wrapper."""
    setattr(wrapper, _ORIGINAL, (wrapper, original))
    with contextlib.suppress(TypeError, ValueError):
        # Frameworks ask for it in every call, and finding it through a wrapper takes 60 us.
        wrapper.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    return wrapper

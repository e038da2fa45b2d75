"""Methods under wrappers: decorators that bind by themselves, tracers' functions, and ours."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

from rag_accel.recognition.tracers import cell_of_traced, retraced

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

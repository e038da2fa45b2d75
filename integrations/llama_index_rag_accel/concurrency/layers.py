"""LlamaIndex's layers around the methods of its classes: spans, and the events of models."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any, TypeVar

from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback

T = TypeVar("T")
Method = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Layers:
    """A method's function, and what LlamaIndex has put around it.

    Args:
        function: as it is written in the class.
        noting: decorates a model's methods with events and callbacks; ``None`` for others.
        span: calls what it is given within a span; ``None`` for methods without one.
    """

    function: FunctionType
    noting: Callable[[Method], Method] | None
    span: Method | None

    def around(self, body: Method) -> Method:
        """Return ``body``, named as the function, with the same around it."""
        if self.noting is None:
            return functools.wraps(self.function)(body)
        # What has ``__wrapped__`` counts there as noted already.
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(body, name, getattr(self.function, name))
        return self.noting(body)

    def run(self, body: Method, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call ``body`` as this method of an object is called."""
        called = self.around(body)
        if self.span is None:
            return called(obj, *args, **kwargs)
        # The span is named after the method, and tells handlers of its object and arguments.
        return self.span(MethodType(called, obj), obj, args, kwargs)


def layers_of(method: Any) -> Layers | None:
    """Take a method apart; ``None`` if anything else is around it: that looks like the method."""
    span = None
    if type(method) is not FunctionType:
        span, method = (getattr(method, name, None) for name in ("_self_wrapper", "__wrapped__"))
        place = f"{getattr(span, '__module__', '')}.{getattr(span, '__qualname__', '')}"
        if place not in _SPANS or type(method) is not FunctionType:
            return None
    noting = _NOTING.get(method.__code__)
    if noting is not None:
        cells = zip(method.__code__.co_freevars, method.__closure__ or (), strict=True)
        method = dict(cells)["f"].cell_contents
    elif hasattr(method, "__wrapped__"):
        return None
    return Layers(method, noting, span) if type(method) is FunctionType else None


def kept(look: Callable[[Any], T]) -> Callable[[Any], T]:
    """Return a look at a method that looks once at each, while it lives and its code is the same.

    By identity: what LlamaIndex puts around a function equals it.
    """
    found: dict[int, tuple[weakref.ref[Any], Any, T]] = {}

    @functools.wraps(look)
    def looked(method: Any) -> T:
        key, code = id(method), getattr(method, "__code__", None)
        seen = found.get(key)
        if seen is not None and seen[0]() is method and seen[1] is code:
            return seen[2]
        result = look(method)
        with contextlib.suppress(TypeError):  # what cannot be referred to weakly
            found[key] = weakref.ref(method, lambda _: found.pop(key, None)), code, result
        return result

    return looked


def _noted(noting: Callable[[Method], Method]) -> CodeType:
    async def nothing(self: Any) -> None: ...

    return noting(nothing).__code__


#: What notes a model's events, by the code of the functions it makes.
_NOTING: Mapping[CodeType, Callable[[Method], Method]] = {
    _noted(noting): noting for noting in (llm_completion_callback(), llm_chat_callback())
}
_SPANS = frozenset(
    f"llama_index_instrumentation.dispatcher.Dispatcher.span.<locals>.{name}"
    for name in ("wrapper", "async_wrapper")
)

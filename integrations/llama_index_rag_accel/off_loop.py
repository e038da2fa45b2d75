"""Blocking calls of LlamaIndex's async methods, made in threads.

A call is moved only where everything it may use is known to be thread-safe; else the method runs as
it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextvars import Context, ContextVar, copy_context
from types import MethodType
from typing import Any

from llama_index_rag_accel.blocking_methods import (
    BlockingMethod,
    Elsewhere,
    Method,
    blocking_method,
    layers_of,
)
from rag_accel.accelerator import Accelerator
from rag_accel.adoption.known_classes import full_name
from rag_accel.adoption.owned_or_plain import fail_open, start_in_pool
from rag_accel.interception.identity import find_identity
from rag_accel.interception.leaf_table import plain_class
from rag_accel_adapters.llama_index.stand_ins import shares_steps
from rag_accel_adapters.llama_index.thread_safe import preparation


def off_loop(method: Method) -> Method:
    """Return a method as it is to run here: its blocking call in a thread if it may."""
    known = blocking_method(method)
    return method if known is None else functools.partial(_run, method, known)


def _run(method: Method, known: BlockingMethod, obj: Any, *args: Any, **kwargs: Any) -> Any:
    elsewhere = _threads_for(known, obj, args, kwargs)
    if elsewhere is None:
        return method(obj, *args, **kwargs)
    layers = layers_of(method)
    assert layers is not None, "only what is known runs here"

    async def body(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await known.body(elsewhere, self, *args, **kwargs)

    called = layers.around(body)
    if layers.span is None:
        return called(obj, *args, **kwargs)
    # The span is named after the method, and tells handlers of its object and arguments.
    return layers.span(MethodType(called, obj), obj, args, kwargs)


def _threads_for(
    known: BlockingMethod, obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Elsewhere | None:
    """Return what makes the blocking call in a thread; ``None`` if it is to stay on its loop."""
    identity = find_identity()
    if identity is None or not identity.accelerator.options.off_loop:
        return None
    accelerator = identity.accelerator
    named = accelerator.options.thread_safe_classes
    try:
        is_named = full_name(plain_class(type(obj))) in named
        if known.only_named and not is_named and not shares_steps(obj):
            return None
        used = [*known.uses(obj), *args[:1], kwargs.get("query_bundle")]
        prepare = preparation(used, named, plain_class)
    except Exception as error:
        fail_open(accelerator, error, __name__)
        return None
    return None if prepare is None else functools.partial(_in_thread, accelerator, prepare)


async def _in_thread(
    accelerator: Accelerator, prepare: Callable[[], None], call: Method, *args: Any, **kwargs: Any
) -> CallOutcome:
    def outcome() -> CallOutcome:
        prepare()
        return CallOutcome(functools.partial(call, *args, **kwargs))

    running = start_in_pool(accelerator, outcome, __name__)
    return outcome() if running is None else await running


_ABSENT = object()


class CallOutcome:
    """What a call has returned or raised, and what it has set in its context."""

    __slots__ = ("_changes", "_error", "_value")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        before = copy_context()
        try:
            self._value = call()
        except BaseException as error:  # also one that no future can hold, a StopIteration
            self._error = error
        self._changes = list(_changes(before, copy_context()))

    def result(self) -> Any:
        """Set here what the call has set; return what it returned or raise what it raised."""
        for var, value in self._changes:
            var.set(value)
        error, self._error = self._error, None
        if error is None:
            return self._value
        try:
            raise error
        finally:
            del error  # whose traceback leads here


def _changes(before: Context, after: Context) -> Iterator[tuple[ContextVar[Any], Any]]:
    for var, value in after.items():
        if value is not before.get(var, _ABSENT):
            yield var, value

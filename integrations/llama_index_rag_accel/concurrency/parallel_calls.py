"""Independent calls that LlamaIndex makes one by one, run side by side.

Only where everything they may use is known to be thread-safe; else they are made in order.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from llama_index_rag_accel.concurrency.blocking_methods import blocking_method
from llama_index_rag_accel.concurrency.composites import composite_of
from llama_index_rag_accel.concurrency.independent_calls import IndependentCalls
from llama_index_rag_accel.concurrency.layers import Method, kept, layers_of
from llama_index_rag_accel.concurrency.offload import off_loop
from rag_accel.accelerator import Accelerator
from rag_accel.interception.parallel_calls import (
    MAX_AT_ONCE,
    accelerator_of_calls,
    arun_side_by_side,
    preparation_for,
    run_side_by_side,
)
from rag_accel.system.loops import runs_in_loop
from rag_accel.system.methods import called_on
from rag_accel_adapters.llama_index.thread_safe import THREAD_SAFETY

T = TypeVar("T")


def spread(method: Method) -> Method:
    """Return a method as it is to run here.

    Its independent calls run side by side and its blocking call in a thread, if they may.
    """
    if not _is_known(method):
        return method
    known = composite_of(method)
    return off_loop(method) if known is None else functools.partial(_run, method, known)


@kept
def _is_known(method: Method) -> bool:
    return composite_of(method) is not None or blocking_method(method) is not None


def _run(method: Method, known: IndependentCalls, obj: Any, *args: Any, **kwargs: Any) -> Any:
    accelerator = _accelerator_for(known, obj) if known.are_several(*args, **kwargs) else None
    if accelerator is None:
        return called_on(method)(obj, *args, **kwargs)
    layers = layers_of(method)
    assert layers is not None, "only what is known runs here"
    if inspect.iscoroutinefunction(layers.function):
        run_all = _RunTasks(accelerator)

        async def abody(self: Any, *args: Any, **kwargs: Any) -> Any:
            return await known.body(run_all, self, *args, **kwargs)

        return layers.run(abody, obj, *args, **kwargs)
    if runs_in_loop():
        return method(obj, *args, **kwargs)

    def body(self: Any, *args: Any, **kwargs: Any) -> Any:
        return known.body(functools.partial(_run_all, accelerator), self, *args, **kwargs)

    return layers.run(body, obj, *args, **kwargs)


def _accelerator_for(known: IndependentCalls, obj: Any) -> Accelerator | None:
    """Return the accelerator whose request the calls are part of; ``None`` if they are plain."""
    # What an embedding is asked for has permits of its own.
    accelerator = accelerator_of_calls(obj if known.is_leafs else None)
    if accelerator is None or not known.fits(obj, accelerator.options.thread_safe_classes):
        return None
    return accelerator


def _run_all(
    accelerator: Accelerator, calls: Sequence[Callable[[], T]], uses: Sequence[object]
) -> list[T]:
    prepare = len(calls) > 1 and preparation_for(accelerator, THREAD_SAFETY, lambda: uses)
    if not prepare:
        return [call() for call in calls]
    prepare()
    return run_side_by_side(accelerator, calls)


class _RunTasks:
    """A runner of the coroutines of one method, or the number that it may run at once."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    async def __call__(
        self, calls: Sequence[Callable[[], Awaitable[T]]], uses: Sequence[object]
    ) -> list[T]:
        if len(calls) < 2 or not self._are_safe(uses):
            return [await call() for call in calls]
        return await arun_side_by_side(calls)

    def at_once(self, own: int, uses: Sequence[object]) -> int:
        return max(own, MAX_AT_ONCE) if self._are_safe(uses) else own

    def _are_safe(self, uses: Sequence[object]) -> bool:
        return preparation_for(self._accelerator, THREAD_SAFETY, lambda: uses) is not None

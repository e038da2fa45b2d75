"""Calls of LlamaIndex's methods that block a loop, or are made one by one, in threads or tasks.

Only where everything they may use is known to be thread-safe; else a method runs as it is.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from llama_index_rag_accel.concurrency.blocking_methods import (
    BlockingMethod,
    Elsewhere,
    blocking_method,
)
from llama_index_rag_accel.concurrency.composites import IndependentCalls, composite_of
from llama_index_rag_accel.concurrency.layers import Method, kept, layers_of
from rag_accel.accelerator import Accelerator, RequestIdentity
from rag_accel.interception.fallback import fail_open, start_in_pool
from rag_accel.interception.identity import find_identity, identity_for
from rag_accel.interception.leaf_call import is_nested
from rag_accel.interception.leaf_table import OWN, LeafMethod
from rag_accel.interception.parallel_calls import (
    MAX_AT_ONCE,
    Outcomes,
    accelerator_of_calls,
    arun_side_by_side,
    obstacle,
    preparation_for,
    run_side_by_side,
)
from rag_accel.system.classes import full_name
from rag_accel.system.loops import runs_in_loop
from rag_accel.system.methods import called_on, plain_class, plain_method
from rag_accel.system.thread_safety import prepare_nothing
from rag_accel_adapters.llama_index.proxies import searches_on_engine, shares_steps
from rag_accel_adapters.llama_index.thread_safe import THREAD_SAFETY


def off_loop(method: Method) -> Method:
    """Return a method as it is to run here: its blocking call in a thread if it may."""
    known = blocking_method(method)
    return method if known is None else functools.partial(_run, method, known)


def may_leave(leaf: LeafMethod, cls: type) -> bool:
    """Tell whether the blocking call of a class's method may be made in a thread."""
    return blocking_method(plain_method(plain_class(cls), leaf.name)) is not None


def stays_on_loop(obj: Any, identity: RequestIdentity) -> bool:
    """Tell whether a store makes all its blocking calls where it is asked."""
    accelerator = identity.accelerator
    return not accelerator.options.offload_blocking or not _is_named(obj, accelerator)


def leaving_within(original: Method, leaf: LeafMethod, plain: Method) -> Method:
    """Return the scheduled version of a method that leaves its loop also as part of another leaf.

    Of a store that a retriever asks, say: the call that is part of the retriever's is not admitted
    again.

    Args:
        original: the method.
        leaf: its row.
        plain: the scheduled version of a call of its own.
    """

    def sync(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        method = original if is_nested(self) else functools.partial(plain, identity)
        return method(self, *args, **kwargs)

    async def coroutine(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        nested = is_nested(self)
        method = off_loop(original) if nested else functools.partial(plain, identity)
        return await method(self, *args, **kwargs)

    return coroutine if leaf.flavour == "coroutine" else sync


def _run(method: Method, known: BlockingMethod, obj: Any, *args: Any, **kwargs: Any) -> Any:
    elsewhere = _threads_for(known, obj, args, kwargs)
    if elsewhere is None:
        return called_on(method)(obj, *args, **kwargs)
    layers = layers_of(method)
    assert layers is not None, "only what is known runs here"

    async def body(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await known.body(elsewhere, self, *args, **kwargs)

    return layers.run(body, obj, *args, **kwargs)


def _threads_for(
    known: BlockingMethod, obj: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Elsewhere | None:
    """Return what makes the blocking call in a thread; ``None`` if it is to stay on its loop."""
    identity = _identity_of(obj)
    if identity is None or not identity.accelerator.options.offload_blocking:
        return None
    accelerator = identity.accelerator
    if searches_on_engine(obj):  # its class is known, and uses nothing but its index
        return functools.partial(_in_thread, accelerator, prepare_nothing)
    if known.only_named and not _is_to_be_moved(obj, accelerator):
        return None
    prepare = preparation_for(
        accelerator, THREAD_SAFETY, lambda: [*known.uses(obj), *known.given(args, kwargs)]
    )
    return None if prepare is None else functools.partial(_in_thread, accelerator, prepare)


def _is_to_be_moved(obj: Any, accelerator: Accelerator) -> bool:
    """Tell whether the method of an object may block for long, and is to do so elsewhere."""
    return _is_named(obj, accelerator) or _shares_steps(obj, accelerator)


def _is_named(obj: Any, accelerator: Accelerator) -> bool:
    """Tell whether the user has named the class of an object as thread-safe."""
    named = accelerator.options.thread_safe_classes
    return bool(named) and full_name(plain_class(type(obj))) in named


def _shares_steps(obj: Any, accelerator: Accelerator) -> bool:
    try:
        return shares_steps(obj)
    except Exception as error:
        fail_open(accelerator, error, __name__)
        return False


def _identity_of(obj: Any) -> RequestIdentity | None:
    """Return the run that a call belongs to, of an accelerated object also outside of any."""
    cls = type(obj)
    is_twin = plain_class(cls) is not cls
    return identity_for(getattr(cls, OWN, None)) if is_twin else find_identity()


def reason_to_stay(
    known: BlockingMethod, obj: Any, accelerator: Accelerator, *, is_search: bool = False
) -> str | None:
    """Return why an object's blocking call stays on its loop; ``None`` if it is made in a thread.

    What a call is given may be a reason, too. ``is_search`` is for a search on the object's proxy.
    """
    if not accelerator.options.offload_blocking:
        return "offload_blocking=False"
    if is_search:
        return None
    if known.only_named and not _is_to_be_moved(obj, accelerator):
        return f"thread_safe_classes does not name {full_name(plain_class(type(obj)))}"
    return obstacle(accelerator, THREAD_SAFETY, known.uses(obj))


async def _in_thread(
    accelerator: Accelerator, prepare: Callable[[], object], call: Method, *args: Any, **kwargs: Any
) -> Outcomes:
    def outcome() -> Outcomes:
        prepare()
        return Outcomes.of(functools.partial(call, *args, **kwargs))

    running = start_in_pool(accelerator, outcome, __name__)
    return outcome() if running is None else await running


T = TypeVar("T")


def spread(method: Method) -> Method:
    """Return a method as it is to run here.

    Its independent calls run side by side and its blocking call in a thread, if they may.
    """
    if not _is_known(method):
        return method
    known = composite_of(method)
    return off_loop(method) if known is None else functools.partial(_run_together, method, known)


@kept
def _is_known(method: Method) -> bool:
    return composite_of(method) is not None or blocking_method(method) is not None


def _run_together(
    method: Method, known: IndependentCalls, obj: Any, *args: Any, **kwargs: Any
) -> Any:
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

"""Wrap leaf methods so that their calls pass the scheduler.

A wrapper keeps the original's signature and, when there is nothing to schedule, is the original.
It exists in four flavours (plain, coroutine, generator, async generator) and in two uses: in a
subclass made for one accelerated object, where every call is scheduled, and in a class-level patch,
where only calls that belong to an accelerated run are. A composite's methods have a fifth flavour,
which may run the calls that they make side by side.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    aclosing,
    nullcontext,
)
from typing import Any

from langchain_core.callbacks.manager import AsyncRunManager
from langchain_core.language_models import BaseLanguageModel
from langchain_core.vectorstores import VectorStore

from langchain_rag_accel.composite_calls import spreading
from langchain_rag_accel.context import (
    Admission,
    AsyncAdmission,
    Hold,
    held,
    scoped,
    start_in_pool,
)
from langchain_rag_accel.coverage import note_leaf
from langchain_rag_accel.leaf_methods import (
    DECODING,
    SEARCHING,
    Flavour,
    LeafMethod,
    engine_name,
    is_composite,
    is_default,
    mark,
    plain_method,
)
from langchain_rag_accel.stepping import Scope, astepped, stepped
from rag_accel.accelerator import RequestIdentity, current_request

FindIdentity = Callable[[Any], RequestIdentity | None]
Method = Callable[..., Any]


def wrap(cls: type, leaf: LeafMethod, find: FindIdentity) -> Method | None:
    """Return a scheduled version of ``cls``'s method, or ``None`` if there is nothing to wrap."""
    original = plain_method(cls, leaf.name)
    if original is None:
        return None
    if is_default(cls, leaf):
        return mark(_off_loop(original, leaf, find), original) if leaf.sync else None
    return mark(_WRAPPERS[leaf.flavour](original, leaf, find), original)


def is_nested(obj: Any) -> bool:
    """Tell whether a call of ``obj`` is part of a leaf that already holds a permit.

    That is its own leaf, or that of a retriever over a store, or of a model over another.
    """
    return any(
        hold.obj == id(obj)
        or (hold.kind is SEARCHING and isinstance(obj, VectorStore))
        or (hold.kind is DECODING and isinstance(obj, BaseLanguageModel))
        for hold in held.get()
        if hold.is_active
    )


class inside:  # noqa: N801 - used as a function
    """Let what runs here count as part of this leaf of ``obj``, and of this run."""

    __slots__ = ("_held", "_hold", "_run")

    def __init__(self, obj: Any, leaf: LeafMethod, identity: RequestIdentity) -> None:
        self._hold = Hold(id(obj), leaf.kind)
        self._held = scoped(held, (*held.get(), self._hold))
        self._run = scoped(current_request, identity)

    def __enter__(self) -> None:
        self._held.__enter__()
        self._run.__enter__()

    def __exit__(self, *raised: object) -> None:
        self._run.__exit__()
        self._held.__exit__()
        self._hold.is_active = False


def _identity(obj: Any, find: FindIdentity) -> RequestIdentity | None:
    if is_nested(obj):
        return None
    identity = find(obj)
    if identity is None and not is_composite(obj):
        note_leaf(obj, (), False)
    return identity


def _scope(obj: Any, leaf: LeafMethod, identity: RequestIdentity) -> Scope:
    def scope() -> AbstractContextManager[None]:
        return inside(obj, leaf, identity)

    return scope


def _plain(original: Method, leaf: LeafMethod, find: FindIdentity) -> Method:
    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        identity = _identity(self, find)
        if identity is None:
            return original(self, *args, **kwargs)
        if is_composite(self):  # others hold the permits; the run is theirs too
            with scoped(current_request, identity):
                return spreading(original)(self, *args, **kwargs)
        with Admission(identity, engine_name(type(self)), leaf.kind) as granted:
            note_leaf(self, args, granted)
            with inside(self, leaf, identity):
                return original(self, *args, **kwargs)

    return wrapper


def _coroutine(original: Method, leaf: LeafMethod, find: FindIdentity) -> Method:
    @functools.wraps(original)
    async def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        identity = _identity(self, find)
        if identity is None:
            return await original(self, *args, **kwargs)
        if is_composite(self):
            with scoped(current_request, identity):
                return await original(self, *args, **kwargs)
        async with AsyncAdmission(identity, engine_name(type(self)), leaf.kind) as granted:
            note_leaf(self, args, granted)
            with inside(self, leaf, identity):
                return await original(self, *args, **kwargs)

    return wrapper


def _generator(original: Method, leaf: LeafMethod, find: FindIdentity) -> Method:
    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        identity = _identity(self, find)
        if identity is None:
            yield from original(self, *args, **kwargs)
            return
        with Admission(identity, engine_name(type(self)), leaf.kind) as granted:
            note_leaf(self, args, granted)
            with inside(self, leaf, identity):
                items = iter(original(self, *args, **kwargs))
            yield from stepped(items, _scope(self, leaf, identity))

    return wrapper


def _async_generator(original: Method, leaf: LeafMethod, find: FindIdentity) -> Method:
    @functools.wraps(original)
    async def wrapper(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        identity = _identity(self, find)
        async with AsyncExitStack() as stack:
            scope: Scope = nullcontext
            if identity is not None:
                permit = AsyncAdmission(identity, engine_name(type(self)), leaf.kind)
                note_leaf(self, args, await stack.enter_async_context(permit))
                scope = _scope(self, leaf, identity)
            with scope():
                items = aiter(original(self, *args, **kwargs))
            async for item in await stack.enter_async_context(aclosing(astepped(items, scope))):
                yield item

    return wrapper


def _composite(original: Method, leaf: LeafMethod, find: FindIdentity) -> Method:
    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return spreading(original)(self, *args, **kwargs)

    return wrapper


def _off_loop(original: Method, leaf: LeafMethod, find: FindIdentity) -> Method:
    """Wrap an async method that its class inherits: the work is the sync method's.

    The default runs it in the loop's default executor, six threads on two cores; here it runs in
    the accelerator's own pool.
    """
    assert leaf.sync is not None, "only async methods have a default to replace"
    sync_name = leaf.sync

    @functools.wraps(original)
    async def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        identity = find(self)
        if identity is None:
            return await original(self, *args, **kwargs)
        sync = functools.partial(
            getattr(self, sync_name), *_sync_args(args), **_sync_kwargs(kwargs)
        )
        running = start_in_pool(identity.accelerator, sync, engine_name(type(self)))
        return await (running or original(self, *args, **kwargs))

    return wrapper


def _sync_args(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_sync_manager(arg) for arg in args)


def _sync_kwargs(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {key: _sync_manager(value) for key, value in kwargs.items()}


def _sync_manager(value: Any) -> Any:
    return value.get_sync() if isinstance(value, AsyncRunManager) else value


_WRAPPERS: dict[Flavour, Callable[[Method, LeafMethod, FindIdentity], Method]] = {
    "plain": _plain,
    "coroutine": _coroutine,
    "generator": _generator,
    "async_generator": _async_generator,
    "composite": _composite,
}

"""Wrappers of leaf methods, whose calls pass the scheduler.

A wrapper looks once for the run that its call belongs to. Without one it is the original; else the
*scheduled* version runs, which is told the run. There are four flavours (plain, coroutine,
generator, async generator) and two uses: in a subclass made for one accelerated object, where every
call is scheduled, and in a class-level patch, where only calls that belong to an accelerated run
are. A composite's methods, plain or coroutines, have a fifth flavour, which may run the calls that
they make side by side or elsewhere.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import Any, TypeVar

from rag_accel.accelerator import RequestIdentity
from rag_accel.engine_api import PrimitiveKind
from rag_accel.interception.fallback import start_in_pool
from rag_accel.interception.leaf_call import (
    LeafCall,
    held,
    inside,
    is_nested,
    is_part_of_unscheduled,
    meters,
    note_leaf,
    unscheduled,
)
from rag_accel.interception.leaf_table import (
    Flavour,
    Framework,
    LeafMethod,
    holds,
    is_composite,
    is_default,
    leaf_class,
)
from rag_accel.interception.watching import TIMED, watched_request
from rag_accel.system.methods import called_on, mark, plain_method

T = TypeVar("T")
StreamScope = Callable[[], AbstractContextManager[object]]


def stepped(items: Iterator[T], scope: StreamScope, *, closes: bool = True) -> Iterator[T]:
    """Yield the items, each computed inside ``scope()``; closing this closes them if asked to.

    A context variable set around a ``yield`` would leak into whoever consumes the stream, and could
    not be reset by a consumer in another context. The scope is therefore entered for each item.
    """
    step = scope()
    try:
        while True:
            with step:
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item
    except GeneratorExit:
        close = getattr(items, "close", None) if closes else None
        if close is not None:
            with step:
                close()
        raise


async def astepped(
    items: AsyncIterator[T], scope: StreamScope, *, closes: bool = True
) -> AsyncGenerator[T, None]:
    """Yield the items, each computed inside ``scope()``; closing this closes them if asked to."""
    step = scope()
    try:
        while True:
            with step:
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
            yield item
    except GeneratorExit:
        aclose = getattr(items, "aclose", None) if closes else None
        if aclose is not None:
            with step:
                await aclose()
        raise


FindIdentity = Callable[[Any], RequestIdentity | None]
Method = Callable[..., Any]

_FINDING = frozenset({PrimitiveKind.SEARCHING, PrimitiveKind.RERANKING})

#: Where a wrapper keeps its scheduled version: ``scheduled(identity, obj, *args, **kwargs)``.
SCHEDULED_CALL = "__rag_accel_scheduled_call__"


def wrap(cls: type, leaf: LeafMethod, find: FindIdentity) -> Method | None:
    """Return a version of ``cls``'s method that passes the scheduler, if there is one to wrap."""
    original = plain_method(cls, leaf.name)
    if original is None:
        return None
    is_inherited = is_default(cls, leaf)
    if leaf.flavour == "composite":
        spread = leaf_class(cls).framework.spread
        return None if is_inherited else mark(_composite(original, spread), original)
    if not is_inherited:
        scheduled = borrowed(original, leaf)
    elif leaf.sync is not None:
        scheduled = _off_loop(original, leaf, leaf.sync)
    else:
        return None
    if leaf.owned is not None:
        scheduled = leaf.owned(original, leaf, scheduled)
    if leaf.kind in _FINDING and leaf.finds_documents:
        scheduled = noting(scheduled, leaf_class(cls).framework)
    seek = find if is_inherited else functools.partial(_leafs_run, find, leaf.name)
    if leaf.within(cls):
        seek = functools.partial(_run_within, find, seek, leaf)
    wrapper = mark(_WRAPPING[leaf.flavour][0](original, scheduled, seek, leaf), original)
    setattr(wrapper, SCHEDULED_CALL, scheduled)
    return wrapper


def noting(scheduled: Method, framework: Framework) -> Method:
    """Return a scheduled version whose results the run remembers, for prompts made of them."""

    read, question_in = framework.documents, framework.question

    def note(identity: RequestIdentity, found: Any, given: Iterable[Any]) -> None:
        asked = list[str]()
        for value in given:  # a comprehension is a frame more before Python 3.12
            if question := question_in(value):
                asked.append(question)
        identity.retrieved.add(read, found, asked)
        accelerator = identity.accelerator
        if accelerator.takes_hints:
            accelerator.hint(text for _, text in read(found))

    if inspect.iscoroutinefunction(scheduled):

        async def anoting(identity: RequestIdentity, obj: Any, *args: Any, **kwargs: Any) -> Any:
            found = await scheduled(identity, obj, *args, **kwargs)
            note(identity, found, (*args, *kwargs.values()))
            return found

        return anoting

    def call(identity: RequestIdentity, obj: Any, *args: Any, **kwargs: Any) -> Any:
        found = scheduled(identity, obj, *args, **kwargs)
        note(identity, found, (*args, *kwargs.values()))
        return found

    return call


def borrowed(original: Method, leaf: LeafMethod) -> Method:
    """Return the scheduled version for objects that are admitted and run where their caller is."""
    return _WRAPPING[leaf.flavour][1](original, leaf)


def _leafs_run(find: FindIdentity, name: str, obj: Any) -> RequestIdentity | None:
    if held.get() and is_nested(obj):
        return None
    identity = find(obj)
    if identity is None and meters and not (is_composite(obj) or is_part_of_unscheduled(obj)):
        note_leaf(obj, (), None, name)
    return identity


def _run_within(
    find: FindIdentity, seek: FindIdentity, leaf: LeafMethod, obj: Any
) -> RequestIdentity | None:
    """Return the run of any call, unless a subclass changed what the class is known for.

    ``None`` for a part of another leaf that is the object's own work all the same.
    """
    if held.get() and is_nested(obj):
        identity = find(obj)
        if identity is None or leaf.is_plain_within(obj, identity):
            return None
        return identity if leaf.within(type(obj)) else seek(obj)
    return find(obj) if leaf.within(type(obj)) else seek(obj)


def _metered(obj: Any, leaf: LeafMethod) -> AbstractContextManager[None]:
    """Return a scope for a leaf's work without the scheduler, while somebody meters it."""
    if is_composite(obj):
        return nullcontext()
    return unscheduled(obj, leaf.name, leaf_class(type(obj)).framework.inner.get(leaf.kind, ()))


def _watched(obj: Any, leaf: LeafMethod, *values: Any) -> AbstractContextManager[None]:
    """Return a scope in which a leaf's work is timed, while somebody watches its request."""
    request = watched_request.get()
    is_part = is_composite(obj) or is_part_of_unscheduled(obj)
    if request is None or is_part or leaf.flavour not in TIMED:
        return nullcontext()
    return request.watch.leaf(request, obj, leaf, values)


def _unscheduled(original: Method, plain: Method, obj: Any) -> Method:
    """Return a method as it runs without the scheduler; a watched composite is spread."""
    if watched_request.get() is None or not is_composite(obj):
        return plain
    spread = leaf_class(type(obj)).framework.spread(original)
    return plain if spread is original else spread


def _looking_plain(
    original: Method, scheduled: Method, find: FindIdentity, leaf: LeafMethod
) -> Method:
    plain = called_on(original)

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        identity = find(self)
        if identity is None:
            if meters:
                with _watched(self, leaf, *args, *kwargs.values()), _metered(self, leaf):
                    return _unscheduled(original, plain, self)(self, *args, **kwargs)
            return plain(self, *args, **kwargs)
        return scheduled(identity, self, *args, **kwargs)

    return wrapper


def _looking_coroutine(
    original: Method, scheduled: Method, find: FindIdentity, leaf: LeafMethod
) -> Method:
    plain = called_on(original)

    @functools.wraps(original)
    async def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        identity = find(self)
        if identity is None:
            if meters:
                with _watched(self, leaf, *args, *kwargs.values()), _metered(self, leaf):
                    return await _unscheduled(original, plain, self)(self, *args, **kwargs)
            return await plain(self, *args, **kwargs)
        return await scheduled(identity, self, *args, **kwargs)

    return wrapper


def _looking_generator(
    original: Method, scheduled: Method, find: FindIdentity, leaf: LeafMethod
) -> Method:
    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        identity = find(self)
        if identity is None:
            yield from original(self, *args, **kwargs)
        else:
            yield from scheduled(identity, self, *args, **kwargs)

    return wrapper


def _looking_async_generator(
    original: Method, scheduled: Method, find: FindIdentity, leaf: LeafMethod
) -> Method:
    @functools.wraps(original)
    async def wrapper(self: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        identity = find(self)
        if identity is None:
            items = astepped(aiter(original(self, *args, **kwargs)), nullcontext)
        else:
            items = scheduled(identity, self, *args, **kwargs)
        async with aclosing(items):
            async for item in items:
                yield item

    return wrapper


def _composite(original: Method, spread: Callable[[Method], Method]) -> Method:
    plain = called_on(original)

    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def awrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            called = spread(original)
            return await (plain if called is original else called)(self, *args, **kwargs)

        return awrapper

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        called = spread(original)
        return (plain if called is original else called)(self, *args, **kwargs)

    return wrapper


def _plain(original: Method, leaf: LeafMethod) -> Method:
    plain = called_on(original)

    def scheduled(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        known = leaf_class(type(self))
        if known.parts and holds(self, known.parts):  # they hold the permits; the run is theirs too
            with inside(None, identity):
                return known.framework.spread(original)(self, *args, **kwargs)
        call = LeafCall(identity, self, leaf, known, args)
        try:
            if not call.begin():
                call.wait()
            with call:
                value = plain(self, *args, **kwargs)
                if identity.spans is not None:
                    call.note_result(identity.spans, value)
                return value
        finally:
            if not call.is_settled:
                call.leave()

    return scheduled


def _coroutine(original: Method, leaf: LeafMethod) -> Method:
    plain = called_on(original)
    called: Method | None = None  # known from the first call on: it depends on the method alone

    async def scheduled(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal called
        known = leaf_class(type(self))
        if called is None:
            spread = known.framework.spread(original)
            called = plain if spread is original else spread
        if known.parts and holds(self, known.parts):
            with inside(None, identity):
                return await called(self, *args, **kwargs)
        call = LeafCall(identity, self, leaf, known, args)
        try:
            if not call.begin():
                await call.wait_on_loop()
            with call:
                value = await called(self, *args, **kwargs)
                if identity.spans is not None:
                    call.note_result(identity.spans, value)
                return value
        finally:
            if not call.is_settled:
                call.leave()

    return scheduled


def _generator(original: Method, leaf: LeafMethod) -> Method:
    def scheduled(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        call = LeafCall(identity, self, leaf, leaf_class(type(self)), args)
        ok = False
        try:
            if not call.begin():
                call.wait()
            with call.inside():
                items = iter(original(self, *args, **kwargs))
            yield from stepped(items, call.inside)
            ok = True
        finally:
            call.end(ok)

    return scheduled


def _async_generator(original: Method, leaf: LeafMethod) -> Method:
    async def scheduled(
        identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        call = LeafCall(identity, self, leaf, leaf_class(type(self)), args)
        ok = False
        try:
            if not call.begin():
                await call.wait_on_loop()
            with call.inside():
                items = aiter(original(self, *args, **kwargs))
            async with aclosing(astepped(items, call.inside)) as steps:
                async for item in steps:
                    yield item
            ok = True
        finally:
            call.end(ok)

    return scheduled


def _stream(original: Method, leaf: LeafMethod) -> Method:
    """Return the scheduled version of a method that begins its work and returns an iterator."""

    def scheduled(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        call = LeafCall(identity, self, leaf, leaf_class(type(self)), args)
        try:
            if not call.begin():
                call.wait()
            with call.inside():
                items = original(self, *args, **kwargs)
        except BaseException:
            call.end(ok=False)
            raise
        if not isinstance(items, Iterator):
            call.end(ok=True)
            return items
        call.begin_stream()
        held_items = _held(items, call)
        # One that is never begun runs no ``finally``.
        weakref.finalize(held_items, call.end, ok=False).atexit = False
        return held_items

    return scheduled


def _held(items: Iterator[T], call: LeafCall) -> Iterator[T]:
    ok = False
    try:
        yield from stepped(items, call.inside)
        ok = True
    finally:
        call.end(ok)


def _async_stream(original: Method, leaf: LeafMethod) -> Method:
    """Return the scheduled version of a coroutine that returns an async iterator."""

    async def scheduled(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        call = LeafCall(identity, self, leaf, leaf_class(type(self)), args)
        try:
            if not call.begin():
                await call.wait_on_loop()
            with call.inside():
                items = await original(self, *args, **kwargs)
        except BaseException:
            call.end(ok=False)
            raise
        if not isinstance(items, AsyncIterator):
            call.end(ok=True)
            return items
        call.begin_stream()
        held_items = _aheld(items, call)
        weakref.finalize(held_items, call.end, ok=False).atexit = False
        return held_items

    return scheduled


async def _aheld(items: AsyncIterator[T], call: LeafCall) -> AsyncIterator[T]:
    ok = False
    try:
        async with aclosing(astepped(items, call.inside)) as steps:
            async for item in steps:
                yield item
        ok = True
    finally:
        call.end(ok)


def _off_loop(original: Method, leaf: LeafMethod, sync_name: str) -> Method:
    """Return the scheduled version of an async method that its class inherits.

    The work is the sync method's. The default runs it in the loop's default executor, six threads
    on two cores; here it runs in the accelerator's own pool, as part of the run that was found.
    """

    async def scheduled(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        sync = getattr(self, sync_name)
        its_own = None if is_nested(self) else getattr(sync, SCHEDULED_CALL, None)
        if its_own is not None:
            sync = functools.partial(its_own, identity, self)
        known = leaf_class(type(self))
        to_sync = known.framework.to_sync
        named = {key: to_sync(value) for key, value in kwargs.items()}
        call = functools.partial(sync, *map(to_sync, args), **named)
        running = start_in_pool(identity.accelerator, call, known.engine)
        return await (original(self, *args, **kwargs) if running is None else running)

    return scheduled


Looking = Callable[[Method, Method, FindIdentity, LeafMethod], Method]
#: what looks for the run of a call, and what is scheduled then, by flavour
_WRAPPING: dict[Flavour, tuple[Looking, Callable[[Method, LeafMethod], Method]]] = {
    "plain": (_looking_plain, _plain),
    "coroutine": (_looking_coroutine, _coroutine),
    "generator": (_looking_generator, _generator),
    "async_generator": (_looking_async_generator, _async_generator),
    "stream": (_looking_plain, _stream),
    "async_stream": (_looking_coroutine, _async_stream),
}

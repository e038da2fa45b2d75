"""Embedding methods of recognised objects, whose texts an owned engine embeds."""

from __future__ import annotations

import asyncio
import time
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard

from rag_accel.accelerator import RequestIdentity
from rag_accel.adoption.embedding_calls import (
    AskAlone,
    EmbeddingCall,
    EmbeddingPrefetch,
    Role,
    taking_from,
    warn_unused,
)
from rag_accel.adoption.embeddings import HostedCalls, KnownEmbeddings
from rag_accel.adoption.endpoint_gates import gate_for
from rag_accel.engines.embedding.hosted_engine import is_small
from rag_accel.engines.embedding.hosted_texts import CallTurn, Flight, Rows, rows_of
from rag_accel.interception import wrappers
from rag_accel.interception.fallback import awith_fallback, fail_open, with_fallback
from rag_accel.interception.leaf_call import LeafCall, is_nested, meters, note_leaf
from rag_accel.interception.leaf_table import LeafMethod, leaf_class
from rag_accel.system.methods import (
    decorated_as,
    is_decorated,
    plain_class,
    plain_method,
    undecorated,
)

_WHERE = "embedding"


def embed_hosted(call: EmbeddingCall, shared: Callable[[], Any], ask: Callable[[Any], Any]) -> Any:
    """Return the vectors of a call, or its only one.

    Args:
        call: of an object on a server.
        shared: asks in a call that others share; an ``AskAlone`` where that has failed.
        ask: asks where the caller is, given the object to ask by.
    """
    loop = asyncio._get_running_loop()
    # Nothing in a loop's thread may wait for what other threads do.
    turn = _begin(call, loop, may_follow=loop is None)
    if turn.leader is not None:
        rows = _wait(call, turn.leader)
        turn = CallTurn(rows) if rows is not None else _begin(call, loop, may_follow=False)
    if turn.rows is not None:
        return _found(call, turn.rows)
    vectors = None
    try:
        vectors = ask(call.holder) if turn.is_alone else shared()
        if isinstance(vectors, AskAlone):
            failed, vectors = vectors, None
            time.sleep(failed.delay_s)
            vectors = ask(_alone(call, failed))
    finally:
        _end(call, turn, vectors)
    return vectors


async def aembed_hosted(
    call: EmbeddingCall,
    shared: Callable[[], Awaitable[Any]],
    ask: Callable[[Any], Awaitable[Any]],
) -> Any:
    """Do as ``embed_hosted`` without blocking the loop."""
    loop = asyncio.get_running_loop()
    turn = _begin(call, loop, may_follow=True, is_async=True)
    if turn.leader is not None:
        rows = await _await(call, turn.leader)
        again = partial(_begin, call, loop, may_follow=False, is_async=True)
        turn = again() if rows is None else CallTurn(rows)
    if turn.rows is not None:
        return _found(call, turn.rows)
    vectors = None
    try:
        vectors = await (ask(call.holder) if turn.is_alone else shared())
        if isinstance(vectors, AskAlone):
            failed, vectors = vectors, None
            await asyncio.sleep(failed.delay_s)
            vectors = await ask(_alone(call, failed))
    finally:
        _end(call, turn, vectors)
    return vectors


def _alone(call: EmbeddingCall, failed: AskAlone) -> Any:
    hosted = call.adopted.hosted
    assert hosted is not None, "only calls of servers come here"
    return hosted.alone(failed.attempts)


def _begin(
    call: EmbeddingCall,
    loop: AbstractEventLoop | None,
    *,
    may_follow: bool,
    is_async: bool = False,
) -> CallTurn:
    accelerator, hosted = call.identity.accelerator, call.adopted.hosted
    assert hosted is not None, "only calls of servers come here"
    key = (hosted.group, call.role, tuple(call.texts))
    may_ask = not (is_async and hosted.blocks_loops)
    may_follow = may_follow and accelerator.options.single_flight
    begin = accelerator.hosted_texts.begin
    turn = partial(begin, key, loop, may_follow=may_follow, may_ask=may_ask)
    return with_fallback(accelerator, turn, CallTurn, _WHERE)


def _end(call: EmbeddingCall, turn: CallTurn, vectors: Any) -> None:
    def end() -> None:
        asked = [vectors] if call.one else vectors
        is_whole = vectors is not None and len(asked) == len(call.texts)
        turn.end(partial(rows_of, asked) if is_whole else None)

    with_fallback(call.identity.accelerator, end, partial(turn.end, None), _WHERE)


def _found(call: EmbeddingCall, rows: Rows) -> Any:
    vectors = [row.tolist() for row in rows]
    return vectors[0] if call.one else vectors


def _wait(call: EmbeddingCall, leader: Flight) -> Rows | None:
    """Return the vectors of equal texts; None if they fail, or take longer than the caller has."""
    try:
        return leader.rows.result(call.identity.accelerator.left_s(call.identity))
    except TimeoutError:
        return None


async def _await(call: EmbeddingCall, leader: Flight) -> Rows | None:
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()  # one's own: others wait on when it goes

    def end() -> None:
        if not over.done():
            over.set_result(None)

    def wake(rows: object) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(end)

    leader.rows.add_done_callback(wake)
    with suppress(TimeoutError):
        await asyncio.wait_for(over, call.identity.accelerator.left_s(call.identity))
    return leader.rows.result() if leader.rows.done() else None


Method = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class EmbeddingMethod:
    """The signature of an embedding method: its argument, and its result.

    Args:
        role: what its texts are.
        one: whether it takes a text and gives a vector, rather than a list of each.
        sync: of a coroutine, the method that does the same.
    """

    role: Role
    one: bool
    sync: str | None = None


@dataclass(frozen=True, slots=True)
class EmbeddingRecogniser:
    """A reader of a framework's embedding methods, and a recogniser of its embeddings objects.

    Args:
        methods: the embedding methods by name.
        known: the classes that engines can run, or whose calls a gate limits.
    """

    methods: Mapping[str, EmbeddingMethod]
    known: KnownEmbeddings

    def owned(self, original: Method, leaf: LeafMethod, borrowed: Method) -> Method:
        """Return the scheduled version of a method that uses an owned engine where it can.

        ``borrowed`` is the one for objects that are not recognised.
        """
        return (
            _coroutine(self, original, leaf, borrowed)
            if leaf.flavour == "coroutine"
            else (_plain(self, original, leaf, borrowed))
        )

    def call(
        self,
        identity: RequestIdentity,
        obj: Any,
        leaf: LeafMethod,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> EmbeddingCall | None:
        """Return the call if an engine can do it; one with other arguments is not understood."""
        if not leaf_class(type(obj)).may_be_owned:
            warn_unused(identity.accelerator, plain_class(type(obj)), None)
            return None
        given = (*args, *kwargs.values())
        if len(given) != 1 or is_nested(obj):
            return None
        how = self.methods[leaf.name]
        texts = [given[0]] if how.one else given[0]
        if not isinstance(texts, list | tuple) or not all(map(_is_text, texts)):
            return None
        adopted = self.known.adopt(obj, plain_class(type(obj)))
        warn_unused(identity.accelerator, plain_class(type(obj)), adopted)
        if adopted is None or not _may_share(adopted.hosted, texts):
            return None
        return EmbeddingCall(identity, adopted, obj, texts, how.role, how.one)

    def limited(
        self,
        identity: RequestIdentity,
        obj: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Return an object as its calls wait for their turn at its endpoint, if it has one."""
        if not leaf_class(type(obj)).may_be_owned or is_nested(obj):
            return obj
        given = next(iter((*args, *kwargs.values())), None)
        is_batch = isinstance(given, list) and not is_small(given)
        gate = gate_for(identity, obj, is_batch=is_batch)
        if gate is None:
            return obj
        limited = partial(self.known.limited, obj, plain_class(type(obj)), gate)
        return with_fallback(identity.accelerator, limited, lambda: obj, "endpoint")


def _plain(
    recogniser: EmbeddingRecogniser, original: Method, leaf: LeafMethod, borrowed: Method
) -> Method:
    inner, alone = _below_decorators(original, leaf, borrowed)

    def scheduled(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        call = recogniser.call(identity, self, leaf, args, kwargs)
        if call is None:
            limited = recogniser.limited(identity, self, args, kwargs)
            return borrowed(identity, limited, *args, **kwargs)

        def unscheduled() -> Any:
            with LeafCall(identity, self, leaf, leaf_class(type(self)), ()).inside():
                return inner(self, *args, **kwargs)

        def run(*_: Any, **__: Any) -> Any:
            if call.adopted.hosted is not None:
                return embed_hosted(call, shared, ask)
            return with_fallback(identity.accelerator, owned(call.embed), unscheduled, "embedding")

        def owned(embed: Callable[[], Any]) -> Callable[[], Any]:
            return _noted(embed, self, leaf)

        def shared() -> Any:
            embed = owned(call.embed_or_alone)
            return with_fallback(identity.accelerator, embed, unscheduled, "embedding")

        def ask(obj: Any) -> Any:
            limited = recogniser.limited(identity, obj, args, kwargs)
            return alone(identity, limited, *args, **kwargs)

        return decorated_as(original, run)(self, *args, **kwargs)

    return scheduled


def _coroutine(
    recogniser: EmbeddingRecogniser, original: Method, leaf: LeafMethod, borrowed: Method
) -> Method:
    inner, alone = _below_decorators(original, leaf, borrowed)

    async def scheduled(identity: RequestIdentity, self: Any, *args: Any, **kwargs: Any) -> Any:
        call = recogniser.call(identity, self, leaf, args, kwargs)
        if call is None:
            limited = recogniser.limited(identity, self, args, kwargs)
            return await borrowed(identity, limited, *args, **kwargs)

        async def unscheduled() -> Any:
            with LeafCall(identity, self, leaf, leaf_class(type(self)), ()).inside():
                return await inner(self, *args, **kwargs)

        async def owned() -> Any:
            found = await compute(self, *args, **kwargs)
            _note(self, leaf, found)
            return found

        async def embed(*_: Any, **__: Any) -> Any:
            return await (call.aembed() if hosted is None else call.aembed_or_alone())

        async def shared() -> Any:
            return await awith_fallback(identity.accelerator, owned, unscheduled, "embedding")

        async def ask(obj: Any) -> Any:
            limited = recogniser.limited(identity, obj, args, kwargs)
            return await alone(identity, limited, *args, **kwargs)

        async def run(*_: Any, **__: Any) -> Any:
            return await (shared() if hosted is None else aembed_hosted(call, shared, ask))

        hosted = call.adopted.hosted
        sync = recogniser.methods[leaf.name].sync if call.adopted.through_sync else None
        compute = embed if sync is None else _in_decorators_of(type(self), sync, embed)
        return await decorated_as(original, run)(self, *args, **kwargs)

    return scheduled


def _in_decorators_of(cls: type, name: str, embed: Method) -> Method:
    """Return a coroutine function in the decorators of a method that is none."""
    method = plain_method(cls, name)
    if method is None or not is_decorated(method):
        return embed

    async def call(*args: Any, **kwargs: Any) -> Any:
        work: asyncio.Task[Any] | None = None

        def start(*args: Any, **kwargs: Any) -> asyncio.Future[Any]:  # they await no coroutine
            nonlocal work
            made = work = asyncio.ensure_future(embed(*args, **kwargs))
            return _never_cancelled(made)

        shown = decorated_as(method, start)(*args, **kwargs)
        try:
            if isinstance(shown, asyncio.Future):
                await asyncio.wait((shown,))  # which does not cancel it
            found = await shown
        except asyncio.CancelledError:
            if work is not None:
                work.cancel()
            raise
        if work is not None and work.cancelled():
            raise asyncio.CancelledError
        return found

    return call


def _never_cancelled(work: asyncio.Task[Any]) -> asyncio.Future[Any]:
    """Return the future of a task that has a result, None, also where the task is cancelled.

    A decorator that looks at its end would raise there, in the loop, with what was asked.
    """
    shown: asyncio.Future[Any] = work.get_loop().create_future()

    def end(work: asyncio.Task[Any]) -> None:
        if shown.done():
            return
        error = None if work.cancelled() else work.exception()
        if error is None:
            shown.set_result(None if work.cancelled() else work.result())
        else:
            shown.set_exception(error)
            shown.exception()  # whoever was cancelled meanwhile does not ask for it

    work.add_done_callback(end)
    return shown


def _below_decorators(
    original: Method, leaf: LeafMethod, borrowed: Method
) -> tuple[Method, Method]:
    """Return a method and its admitted version without decorators, which stand around both."""
    inner = undecorated(original)
    return inner, borrowed if inner is original else wrappers.borrowed(inner, leaf)


def _noted(owned: Callable[[], Any], obj: Any, leaf: LeafMethod) -> Callable[[], Any]:
    def noting() -> Any:
        found = owned()
        _note(obj, leaf, found)
        return found

    return noting


def _note(obj: Any, leaf: LeafMethod, found: Any) -> None:
    if meters and not isinstance(found, AskAlone):  # that one is asked for again, by itself
        note_leaf(obj, (), "owned", leaf.name)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _may_share(hosted: HostedCalls | None, texts: Sequence[str]) -> bool:
    """Tell whether what a caller asks a server for may go into a call with what others ask."""
    if hosted is None:
        return True
    if type(texts) is not list or any(type(text) is not str for text in texts):
        return False
    return len(texts) <= hosted.max_texts and is_small(texts)


@dataclass(frozen=True, slots=True)
class EmbeddingsAhead:
    """A framework's method that embeds a list chunk by chunk, and the way to its texts.

    The method itself runs as always, around calls of the recogniser's methods; only what those
    calls are going to ask for is handed to the engine before.

    Args:
        recogniser: recognises the objects.
        argument: the name of its first argument, the list of texts.
        chunk_len: returns how many texts an object embeds in a call, given its plain class; None
            if what it is going to ask for cannot be told.
    """

    recogniser: EmbeddingRecogniser
    argument: str
    chunk_len: Callable[[Any, type], int | None]

    def owned(self, original: Method, leaf: LeafMethod, borrowed: Method) -> Method:
        """Return the version of the method that hands its texts over before it begins."""

        def sync(identity: RequestIdentity, obj: Any, *args: Any, **kwargs: Any) -> Any:
            with taking_from(self.begin(identity, obj, args, kwargs, on_loop=False)):
                return original(obj, *args, **kwargs)

        async def coroutine(identity: RequestIdentity, obj: Any, *args: Any, **kwargs: Any) -> Any:
            with taking_from(self.begin(identity, obj, args, kwargs, on_loop=True)):
                return await original(obj, *args, **kwargs)

        return coroutine if leaf.flavour == "coroutine" else sync

    def begin(
        self,
        identity: RequestIdentity,
        obj: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        on_loop: bool,
    ) -> EmbeddingPrefetch | None:
        """Hand the texts of a call over, if its object is recognised and needs several chunks."""
        texts = args[0] if args else kwargs.get(self.argument)
        if not leaf_class(type(obj)).may_be_owned or not _are_texts(texts) or is_nested(obj):
            return None
        cls = plain_class(type(obj))
        chunk_len = self.chunk_len(obj, cls)
        if chunk_len is None or len(texts) <= chunk_len:
            return None
        adopted = self.recogniser.known.adopt(obj, cls)
        if adopted is None or adopted.hosted is not None:
            return None
        call = EmbeddingCall(identity, adopted, obj, texts, "document")
        try:
            return call.submit(on_loop=on_loop)
        except Exception as error:
            fail_open(identity.accelerator, error, "embedding")
            return None


def _are_texts(value: object) -> TypeGuard[Sequence[str]]:
    return isinstance(value, list | tuple) and all(type(text) is str for text in value)

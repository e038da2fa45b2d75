"""Calls of embeddings on servers: cached, waited for, shared, or made where their caller is."""

from __future__ import annotations

import asyncio
import time
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from rag_accel.adoption.embedding_calls import AskAlone, EmbeddingCall
from rag_accel.engines.embedding.hosted_texts import CallTurn, Flight, Rows, rows_of
from rag_accel.interception.fallback import with_fallback

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

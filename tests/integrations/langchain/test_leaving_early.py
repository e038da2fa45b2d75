"""Whoever leaves early, by closing a stream or by cancellation, frees what he held."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from idle_accelerators import soon_idle
from langchain_core.language_models import BaseChatModel
from lc_fakes import AsyncChat, StreamingChat, SyncRetriever
from lc_programs import QUESTION, model_chain

from langchain_rag_accel import accelerate
from rag_accel import Accelerator

INPUT = {"input": "question one"}


class Closing(AsyncChat):
    closed: Any = None

    def _stream(self, *args: Any, **kwargs: Any) -> Any:
        try:
            yield from super()._stream(*args, **kwargs)
        finally:
            self.closed.set()

    async def _astream(self, *args: Any, **kwargs: Any) -> Any:
        try:
            async for chunk in super()._astream(*args, **kwargs):
                yield chunk
        finally:
            self.closed.set()


PROGRAMS: dict[str, Callable[[BaseChatModel], Any]] = {
    "chain": lambda model: QUESTION | model,
    "model": lambda model: model,
    "bound model": lambda model: model.bind(stop=["zzz"]),
    "fallbacks": lambda model: model.with_fallbacks([StreamingChat()]),
}


async def _until(is_so: Callable[[], bool]) -> None:
    """Let the loop, and the garbage collector, go on until something is so."""
    async with asyncio.timeout(10.0):
        for turn in count():
            if is_so():
                return
            if turn % 100 == 99:
                gc.collect()
            await asyncio.sleep(0)


async def _until_idle(accelerator: Accelerator) -> None:
    await _until(lambda: accelerator.is_idle)


def _input(name: str) -> Any:
    return INPUT if name == "chain" else "question one"


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "forgotten"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_stream_that_is_left_frees_its_permit(
    name: str, is_closed: bool, accelerator: Accelerator
) -> None:
    model = Closing(closed=threading.Event())
    stream = accelerate(PROGRAMS[name](model), accelerator=accelerator).stream(_input(name))
    next(stream)
    assert not accelerator.is_idle
    if is_closed:
        stream.close()
    else:
        del stream
        gc.collect()
    assert model.closed.is_set()
    assert soon_idle(accelerator)


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "forgotten"])
@pytest.mark.parametrize("name", PROGRAMS)
async def test_an_async_stream_that_is_left_frees_its_permit(
    name: str, is_closed: bool, accelerator: Accelerator
) -> None:
    model = Closing(closed=threading.Event())
    stream = accelerate(PROGRAMS[name](model), accelerator=accelerator).astream(_input(name))
    await anext(stream)
    assert not accelerator.is_idle
    if is_closed:
        await stream.aclose()
    else:
        del stream
    await _until_idle(accelerator)
    assert model.closed.is_set()


async def test_a_stream_closed_in_another_task_frees_its_permit(accelerator: Accelerator) -> None:
    fast = accelerate(model_chain(), accelerator=accelerator)
    stream = fast.astream(INPUT)
    await asyncio.create_task(anext(stream))
    await asyncio.create_task(stream.aclose())
    await _until_idle(accelerator)


async def test_closed_events_free_the_permit(accelerator: Accelerator) -> None:
    fast = accelerate(model_chain(), accelerator=accelerator)
    events = fast.astream_events(INPUT, version="v2")
    async for event in events:
        if event["event"] == "on_chat_model_stream":
            break
    await events.aclose()
    await _until_idle(accelerator)


@pytest.mark.parametrize("turns", range(8))
async def test_a_call_cancelled_at_any_moment_frees_its_permit(
    turns: int, accelerator: Accelerator
) -> None:
    fast = accelerate(QUESTION | AsyncChat(gate=asyncio.Event()), accelerator=accelerator)
    tasks = [asyncio.create_task(fast.ainvoke(INPUT)) for _ in range(16)]
    for _ in range(turns):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in found} == {asyncio.CancelledError}
    assert soon_idle(accelerator)


async def test_a_cancelled_wait_for_a_thread_frees_the_permit_when_the_thread_is_done(
    accelerator: Accelerator,
) -> None:
    release = threading.Event()

    class Slow(SyncRetriever):
        def check(self, given: Any) -> None:
            release.wait(10.0)

    retriever = Slow()
    task = asyncio.create_task(accelerate(retriever, accelerator=accelerator).ainvoke("x"))
    await _until(lambda: retriever.journal.under_way > 0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    assert soon_idle(accelerator)


def test_a_loop_closed_over_pending_calls_leaves_nothing_behind(accelerator: Accelerator) -> None:
    fast = accelerate(QUESTION | AsyncChat(), accelerator=accelerator)

    async def start_and_leave() -> list[Any]:
        model: Any = fast.last
        model.gate = asyncio.Event()
        tasks = [asyncio.ensure_future(fast.ainvoke(INPUT)) for _ in range(4)]
        await asyncio.sleep(0.01)
        return tasks

    tasks = asyncio.run(start_and_leave())  # ends by cancelling what is pending
    assert all(task.cancelled() for task in tasks)
    assert soon_idle(accelerator)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loop_closed_over_open_streams_leaves_nothing_behind(
    name: str, accelerator: Accelerator, caplog: pytest.LogCaptureFixture
) -> None:
    fast = accelerate(PROGRAMS[name](AsyncChat()), accelerator=accelerator)
    kept: list[Any] = []

    async def start_and_leave() -> None:
        kept.extend(fast.astream(_input(name)) for _ in range(3))
        for stream in kept:
            await anext(stream)

    asyncio.run(start_and_leave())
    assert soon_idle(accelerator)
    assert caplog.records == []

"""Fakes of the user's own callables record where and how often at once they ran."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context

import pytest

from rag_accel.testing import FakeAsyncCall, FakeSyncCall

TENANT: ContextVar[str] = ContextVar("tenant")


async def test_an_async_call_records_its_loop_thread_and_context() -> None:
    call = FakeAsyncCall(context_var=TENANT)
    TENANT.set("blue")
    assert await call("question", lang="en") == "question"
    (record,) = call.calls
    assert record.loop is asyncio.get_running_loop()
    assert record.thread_id == threading.get_ident()
    assert record.context_value == "blue"
    assert (record.args, record.kwargs) == (("question",), {"lang": "en"})


async def test_an_async_call_records_how_many_ran_at_once() -> None:
    release = asyncio.Event()

    async def wait(seconds: float) -> None:
        await release.wait()

    call = FakeAsyncCall(wait=wait)
    tasks = [asyncio.create_task(call(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert call.under_way == 5
    release.set()
    assert await asyncio.gather(*tasks) == [0, 1, 2, 3, 4]
    assert (call.peak, call.under_way) == (5, 0)


async def test_a_cancelled_async_call_is_no_longer_under_way() -> None:
    call = FakeAsyncCall(duration_s=60.0)
    task = asyncio.create_task(call())
    await asyncio.sleep(0)
    assert call.under_way == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert call.under_way == 0


async def test_an_async_call_waits_for_its_duration() -> None:
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        waited.append(seconds)

    await FakeAsyncCall(duration_s=0.5, wait=wait)()
    assert waited == [0.5]


def test_a_sync_call_records_its_thread_and_copied_context() -> None:
    call = FakeSyncCall(context_var=TENANT)

    def run() -> None:
        TENANT.set("red")
        call("question")

    thread = threading.Thread(target=lambda: copy_context().run(run))
    thread.start()
    thread.join()
    (record,) = call.calls
    assert record.thread_id == thread.ident
    assert record.context_value == "red"
    assert record.loop is None


async def test_a_sync_call_inside_a_loop_records_that_it_blocks_it() -> None:
    call = FakeSyncCall()
    call()
    assert call.calls[0].loop is asyncio.get_running_loop()


def test_a_sync_call_records_how_many_ran_at_once() -> None:
    together = threading.Barrier(4)
    call = FakeSyncCall(wait=lambda seconds: together.wait(timeout=5.0))
    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(call, range(4))) == [0, 1, 2, 3]
    assert (call.peak, call.under_way, len(call.calls)) == (4, 0, 4)


def test_a_variable_without_a_value_is_recorded_as_none() -> None:
    call = FakeSyncCall(context_var=ContextVar("unset"))
    call()
    assert call.calls[0].context_value is None


def test_a_call_raises_what_its_result_raises_and_is_still_recorded() -> None:
    error = ValueError("the user's own error")

    def fail(*args: object) -> object:
        raise error

    call = FakeSyncCall(fail)
    with pytest.raises(ValueError, match="own error") as caught:
        call("x")
    assert caught.value is error
    assert (len(call.calls), call.under_way) == (1, 0)

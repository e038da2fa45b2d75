"""Threads of our own for the users' sync code: started when needed, bounded, never in the way."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from functools import partial

import pytest
from accel_harness import PATIENCE_S, Gate

from rag_accel import ClosedError
from rag_accel.leaves.call_pool import CallPool


def names() -> set[str]:
    return {t.name for t in threading.enumerate() if t.name.startswith("rag-accel-call")}


@pytest.fixture
def pool():
    made = CallPool(3)
    yield made
    made.close()


def test_no_thread_starts_before_the_first_call(pool: CallPool) -> None:
    assert not names()
    assert pool.submit(lambda: 5).result(PATIENCE_S) == 5
    assert len(names()) == 1


def test_an_idle_thread_is_used_again(pool: CallPool) -> None:
    for n in range(50):
        assert pool.submit(lambda n=n: n).result(PATIENCE_S) == n
        while pool._idle < 1:  # pyright: ignore[reportPrivateUsage]
            pass
    assert len(names()) == 1


def test_calls_beyond_the_bound_wait_for_a_thread(pool: CallPool) -> None:
    with Gate() as gate:
        futures = [pool.submit(gate) for _ in range(10)]
        for _ in range(3):
            gate.wait_until_entered()
        assert len(names()) == 3
        gate.open()
        for future in futures:
            future.result(PATIENCE_S)
    assert len(names()) == 3


@pytest.mark.parametrize("error", [LookupError("no"), SystemExit(1)])
def test_what_a_call_raises_reaches_the_caller_and_ends_no_thread(
    pool: CallPool, error: BaseException
) -> None:
    def fail() -> None:
        raise error

    assert pool.submit(fail).exception(PATIENCE_S) is error
    assert pool.submit(lambda: 5).result(PATIENCE_S) == 5
    assert len(names()) == 1


def test_threads_are_daemons(pool: CallPool) -> None:
    assert pool.submit(lambda: threading.current_thread().daemon).result(PATIENCE_S)


def test_a_closed_pool_takes_no_call_but_ends_those_it_has() -> None:
    pool = CallPool(1)
    with Gate() as gate:
        running, queued = pool.submit(gate), pool.submit(lambda: 5)
        pool.close()
        pool.close()
        with pytest.raises(ClosedError):
            pool.submit(lambda: 5)
        gate.open()
        running.result(PATIENCE_S)
        assert queued.result(PATIENCE_S) == 5


async def test_an_awaited_call_sees_the_context_and_leaves_the_loops_executor_alone(
    pool: CallPool,
) -> None:
    user: ContextVar[str] = ContextVar("user")
    user.set("alice")
    assert await pool.run(user.get) == "alice"
    assert asyncio.get_running_loop()._default_executor is None  # type: ignore[attr-defined]


async def test_a_cancelled_wait_does_not_start_a_call_that_is_still_queued(pool: CallPool) -> None:
    ran: list[int] = []
    with Gate() as gate:
        blocking = [pool.submit(gate) for _ in range(3)]
        task = asyncio.ensure_future(pool.run(lambda: ran.append(1)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open()
        for future in blocking:
            await asyncio.wrap_future(future)
    assert await pool.run(lambda: 5) == 5
    assert not ran


async def test_a_stop_iteration_does_not_hang_the_task(pool: CallPool) -> None:
    def stop() -> None:
        raise StopIteration(5)

    with pytest.raises(RuntimeError) as caught:
        await pool.run(stop)
    assert isinstance(caught.value.__cause__, StopIteration)


@pytest.mark.parametrize("way", ["succeeds", "fails", "awaited"])
async def test_nothing_of_a_call_stays_with_its_thread(pool: CallPool, way: str) -> None:
    class Payload:
        pass

    def call(payload: Payload) -> None:
        if way != "succeeds":
            raise LookupError

    gc.collect()
    gc.disable()
    try:
        payload = Payload()
        ref = weakref.ref(payload)
        if way == "awaited":
            future = pool.start(partial(call, payload))
            await asyncio.wait([future])
        else:
            future = pool.submit(partial(call, payload))
            future.exception(PATIENCE_S)
        assert (future.exception() is None) == (way == "succeeds")
        while pool._idle < 1:  # pyright: ignore[reportPrivateUsage]
            pass
        del payload, future
        assert ref() is None
    finally:
        gc.enable()


def in_its_own_loop(pool: CallPool, call: Callable[[], int]) -> int:
    async def inner() -> int:
        return await pool.run(call)

    return asyncio.run(inner())


async def test_calls_nested_ten_deep_end_in_a_pool_of_one_thread() -> None:
    pool = CallPool(1)

    def deep(levels: int) -> int:
        return in_its_own_loop(pool, partial(deep, levels - 1)) if levels else 5

    assert await asyncio.wait_for(pool.run(partial(deep, 10)), PATIENCE_S) == 5
    pool.close()


def test_a_call_submitted_with_the_context_of_another_starts_beyond_the_bound() -> None:
    pool = CallPool(1)

    def outer() -> int:
        return pool.submit(lambda: 5, copy_context()).result(PATIENCE_S)

    assert pool.submit(outer, copy_context()).result(PATIENCE_S) == 5
    pool.close()


async def test_a_call_that_waits_for_the_pool_by_a_thread_of_its_own_ends_too() -> None:
    pool = CallPool(1, stall_s=0.01)

    def outer() -> int:
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(in_its_own_loop(pool, lambda: 5)))
        thread.start()
        thread.join(PATIENCE_S)
        return found[0]

    assert await asyncio.wait_for(pool.run(outer), PATIENCE_S) == 5
    pool.close()


async def test_a_queued_call_stays_in_the_queue_while_others_end() -> None:
    pool = CallPool(1, stall_s=0.05)
    ran_in: list[str] = []

    def call() -> None:
        ran_in.append(threading.current_thread().name)

    await asyncio.gather(*(pool.run(call) for _ in range(50)))
    assert set(ran_in) == {"rag-accel-call-1"}
    pool.close()


async def test_a_caller_that_leaves_a_stalled_queue_leaves_no_call_behind() -> None:
    pool = CallPool(1, stall_s=PATIENCE_S)
    ran: list[int] = []
    with Gate() as gate:
        blocking = pool.submit(gate)
        gate.wait_until_entered()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pool.run(lambda: ran.append(1)), 0.01)
        gate.open()
        await asyncio.wrap_future(blocking)
    assert await pool.run(lambda: 5) == 5
    assert not ran
    pool.close()


def test_a_call_that_would_have_to_wait_is_not_taken() -> None:
    pool = CallPool(1)
    user: ContextVar[str] = ContextVar("user")
    user.set("alice")
    ran: list[str] = []
    with Gate() as gate:
        assert pool.start_if_free(lambda: ran.append(user.get()) or gate(), copy_context())
        gate.wait_until_entered()
        assert not pool.start_if_free(lambda: ran.append("no"), copy_context())
        gate.open()
    assert pool.submit(lambda: 5).result(PATIENCE_S) == 5
    assert ran == ["alice"]
    pool.close()
    with pytest.raises(ClosedError):
        pool.start_if_free(lambda: None, copy_context())


async def test_a_call_whose_loop_is_closed_meanwhile_ends_in_silence(pool: CallPool) -> None:
    with Gate() as gate:

        def leave() -> None:
            loop = asyncio.new_event_loop()

            async def begin() -> None:
                pool.start(gate)

            loop.run_until_complete(begin())
            gate.wait_until_entered()
            loop.close()

        await asyncio.get_running_loop().run_in_executor(None, leave)
        gate.open()
    assert await pool.run(lambda: 5) == 5

"""Threads of our own for the users' sync code: started when needed, bounded, never in the way."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from contextvars import ContextVar

import pytest
from accel_harness import PATIENCE_S, Gate

from rag_accel import ClosedError
from rag_accel.accelerator.calls import CallPool


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


def test_what_a_call_raises_reaches_the_caller(pool: CallPool) -> None:
    error = LookupError("no")

    def fail() -> None:
        raise error

    assert pool.submit(fail).exception(PATIENCE_S) is error
    assert pool.submit(lambda: 5).result(PATIENCE_S) == 5


def test_even_what_ends_programs_ends_no_thread(pool: CallPool) -> None:
    def leave() -> None:
        raise SystemExit(1)

    assert isinstance(pool.submit(leave).exception(PATIENCE_S), SystemExit)
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


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_a_call_stays_with_its_thread(pool: CallPool, fails: bool) -> None:
    class Payload:
        pass

    def call(payload: Payload) -> None:
        if fails:
            raise LookupError

    gc.collect()
    gc.disable()
    try:
        payload = Payload()
        ref = weakref.ref(payload)
        future = pool.submit(lambda payload=payload: call(payload))
        future.exception(PATIENCE_S)
        while pool._idle < 1:  # pyright: ignore[reportPrivateUsage]
            pass
        del payload, future
        assert ref() is None
    finally:
        gc.enable()

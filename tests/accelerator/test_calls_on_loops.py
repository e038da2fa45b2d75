"""A call that blocks its thread's event loop never waits for what only that loop could end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from accel_harness import PATIENCE_S, opened, settle
from leaf_calls import make_call
from test_leaves import own

from rag_accel import Accelerator
from rag_accel.accelerator import RequestIdentity
from rag_accel.engine_api import PrimitiveKind
from rag_accel.leaves.held_up_loops import AGAIN_S, LOOK_S, wait_beside
from rag_accel.scheduler.messages import EngineName
from rag_accel.testing import FakeEngine, vector_of

DECODING = PrimitiveKind.DECODING
Main = Callable[[], Coroutine[Any, Any, Any]]


def ends(main: Main) -> Any:
    """Return what a loop's main task gives, which must not hang."""
    found: Future[Any] = Future()

    def run() -> None:
        try:
            found.set_result(asyncio.run(main()))
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found.result(PATIENCE_S)


async def held_beside(acc: Accelerator, engine: EngineName, call: Callable[[], Any]) -> Any:
    """Return what a sync call gives while a program of its loop holds the only places."""
    identity = acc.open_request("p")
    settle(acc)
    try:
        async with acc.leaves.permit(identity, engine, DECODING):
            return call()
    finally:
        acc.close_request(identity)


@pytest.mark.parametrize("what", ["call", "compute"])
def test_leaves_in_threads_that_a_loop_stands_still_for_are_let_in(what: str) -> None:
    """Each holds its loop up until two threads have called, ten times as many as may live."""

    async def program(identity: RequestIdentity, call: Callable[[RequestIdentity], Any]) -> None:
        for _ in range(2):
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(call, [identity] * 2))
            await asyncio.sleep(0)
        acc.close_request(identity)

    async def main() -> int:
        engine, work = acc.borrow("chat", DECODING), own(acc, FakeEngine())("a")

        def call(identity: RequestIdentity) -> Any:
            if what == "compute":
                return acc.leaves.compute(identity, work)
            return make_call(acc, identity, engine, DECODING, lambda: 1)

        identities = [acc.open_request("p") for _ in range(40)]
        await asyncio.gather(*(program(one, call) for one in identities))
        return len(identities)

    with opened(max_requests=4) as acc:
        assert ends(main) == 40


class FakeLoop:
    """A loop that answers, or stands still."""

    def __init__(self, answers: bool) -> None:
        self.answers = answers

    def call_soon_threadsafe(self, call: Callable[[], object]) -> None:
        if self.answers:
            call()


def waits_beside(loop: Any, num_looks: int) -> list[float]:
    """Return how long a thread waits each time, whose turn comes after so many of them."""
    waits: list[float] = []

    def wait(timeout_s: float) -> bool:
        waits.append(timeout_s)
        return timeout_s < 0 or len(waits) == num_looks

    wait_beside(loop, wait, lambda: waits.append(0))
    return waits


def test_a_thread_waits_for_its_turn_while_its_loop_runs() -> None:
    assert waits_beside(FakeLoop(answers=True), 9) == [LOOK_S] * 9


def test_a_thread_is_let_in_sooner_beside_a_loop_that_was_held_up_before() -> None:
    loop = FakeLoop(answers=False)
    assert waits_beside(loop, 9) == [LOOK_S, LOOK_S, 0, -1]
    assert waits_beside(loop, 9) == [AGAIN_S, AGAIN_S, 0, -1]


def test_a_thread_whose_loop_is_closed_waits_for_its_turn() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    assert waits_beside(loop, 9) == [LOOK_S, -1]


@pytest.mark.parametrize("max_requests", [1, 100])
def test_work_that_a_task_handed_over_may_be_waited_for_on_its_loop(max_requests: int) -> None:
    with opened(max_requests=max_requests) as acc:
        engine, work = acc.borrow("chat", DECODING), own(acc, FakeEngine())("a")

        def call() -> Any:
            handed = acc.leaves.submit(acc.anonymous(), [work], together=True)
            return handed.value(0).tolist()

        assert ends(partial(held_beside, acc, engine, call)) == [vector_of("a").tolist()]

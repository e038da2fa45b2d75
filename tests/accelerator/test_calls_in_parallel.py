"""Calls that run side by side: order, bound and errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial

import pytest

from rag_accel import Accelerator
from rag_accel.interception.parallel_calls import (
    MAX_AT_ONCE,
    arun_side_by_side,
    run_side_by_side,
)

PATIENCE_S = 30
VAR: ContextVar[int] = ContextVar("var", default=-1)


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """Give an accelerator that raises errors of ours."""
    with Accelerator(strict=True) as made:
        yield made


class Bounded:
    """Calls that note how many of them are under way; the first so many meet."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self._lock = threading.Lock()
        self._places = iter(range(size))
        self._now = self.most = 0

    def __call__(self, value: int) -> int:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
            meets = next(self._places, None) is not None
        if meets:
            self._barrier.wait(PATIENCE_S)
        with self._lock:
            self._now -= 1
        return value


def test_at_most_eight_run_at_once_and_results_keep_their_order(accelerator: Accelerator) -> None:
    bounded = Bounded(MAX_AT_ONCE)
    calls = [partial(bounded, place) for place in range(3 * MAX_AT_ONCE)]
    assert run_side_by_side(accelerator, calls) == list(range(3 * MAX_AT_ONCE))
    assert bounded.most == MAX_AT_ONCE


def test_a_limit_bounds_them_further(accelerator: Accelerator) -> None:
    bounded = Bounded(2)
    calls = [partial(bounded, place) for place in range(6)]
    assert run_side_by_side(accelerator, calls, 2) == list(range(6))
    assert bounded.most == 2


def test_a_busy_pool_leaves_the_calls_to_their_caller() -> None:
    release = threading.Event()
    with Accelerator(strict=True, call_threads=1) as accelerator:
        busy = accelerator.calls.submit(lambda: release.wait(PATIENCE_S))
        threads = run_side_by_side(accelerator, [threading.get_ident] * 4)
        release.set()
        assert busy.result(PATIENCE_S)
    assert threads == [threading.get_ident()] * 4


def test_the_last_in_order_sets_the_callers_context(accelerator: Accelerator) -> None:
    barrier = threading.Barrier(4)

    def call(place: int) -> int:
        seen = VAR.get()
        VAR.set(place)
        barrier.wait(PATIENCE_S)
        return seen

    VAR.set(10)
    assert run_side_by_side(accelerator, [partial(call, place) for place in range(4)]) == [10] * 4
    assert VAR.get() == 3


def test_no_coroutine_begins_after_one_has_failed() -> None:
    begun: list[int] = []

    async def call(place: int) -> int:
        begun.append(place)
        VAR.set(place)
        if place == 1:
            raise ValueError("the second")
        await asyncio.sleep(0)
        return place

    async def run() -> int:
        with pytest.raises(ValueError, match="the second"):
            await arun_side_by_side([partial(call, place) for place in range(20)])
        return VAR.get()

    assert asyncio.run(run()) == 1
    assert len(begun) <= MAX_AT_ONCE


def test_at_most_eight_coroutines_run_at_once_and_keep_their_order() -> None:
    under_way, most = 0, 0

    async def call(place: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(20 - place):
            await asyncio.sleep(0)
        under_way -= 1
        return place

    calls = [partial(call, place) for place in range(20)]
    assert asyncio.run(arun_side_by_side(calls)) == list(range(20))
    assert most == MAX_AT_ONCE

"""At its deadline a caller leaves, wherever his request is stuck."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from accel_harness import PATIENCE_S, Gate, function_graph, opened

from rag_accel import Accelerator, ConfigError, DeadlineError, RAGraph
from rag_accel.scheduler.learning import FEWEST_TIMES

SOON_S = 0.05


def _run(acc: Accelerator, graph: RAGraph, **parts: Any) -> Any:
    return acc.run(graph, **parts)


def _arun(acc: Accelerator, graph: RAGraph, **parts: Any) -> Any:
    return asyncio.run(acc.arun(graph, **parts))


def _stream(acc: Accelerator, graph: RAGraph, **parts: Any) -> Any:
    return list(acc.stream(graph, **parts))


def _astream(acc: Accelerator, graph: RAGraph, **parts: Any) -> Any:
    async def main() -> list[str]:
        return [text async for text in acc.astream(graph, **parts)]

    return asyncio.run(main())


def _submit(acc: Accelerator, graph: RAGraph, **parts: Any) -> Any:
    return acc.submit(graph, **parts).result(PATIENCE_S)


Way = Callable[..., Any]
anyhow = pytest.mark.parametrize("way", [_run, _arun, _stream, _astream, _submit])


@anyhow
def test_in_a_function_that_hangs(way: Way) -> None:
    with Gate() as gate, opened() as acc:
        with pytest.raises(DeadlineError):
            way(acc, function_graph(lambda text: gate()), deadline_s=SOON_S, input="x")
        gate.open()


@anyhow
def test_in_an_async_function_that_hangs(way: Way) -> None:
    woken: list[asyncio.Event] = []

    async def hang(text: str) -> None:
        woken.append(asyncio.Event())
        loop = asyncio.get_running_loop()
        released = loop.run_in_executor(None, gate)
        await released

    with Gate() as gate, opened() as acc:
        if way in (_arun, _astream):

            async def forever(text: str) -> None:
                await asyncio.Event().wait()

            with pytest.raises(DeadlineError):
                way(acc, function_graph(forever), deadline_s=SOON_S, input="x")
        else:
            with pytest.raises(DeadlineError):
                way(acc, function_graph(hang), deadline_s=SOON_S, input="x")
        gate.open()


@anyhow
def test_the_option_counts_where_no_other_is_given(way: Way) -> None:
    with Gate() as gate, opened(deadline_s=SOON_S) as acc:
        with pytest.raises(DeadlineError):
            way(acc, function_graph(lambda text: gate()), input="x")
        gate.open()
        late = Gate(is_open=True)
        assert way(acc, function_graph(lambda t: late() or t), deadline_s=60.0, input="x")


@anyhow
def test_a_deadline_of_nothing_has_already_passed(way: Way) -> None:
    ran: list[str] = []
    with opened() as acc, pytest.raises(DeadlineError):
        way(acc, function_graph(ran.append), deadline_s=0.0, input="x")
    assert not ran


@pytest.mark.parametrize("deadline_s", [-1.0, float("nan")])
@anyhow
def test_a_deadline_that_is_none_is_refused(way: Way, deadline_s: float) -> None:
    with opened() as acc, pytest.raises(ConfigError, match="deadline"):
        way(acc, function_graph(str), deadline_s=deadline_s, input="x")


def test_a_task_that_ignores_its_cancellation_does_not_keep_the_caller() -> None:
    async def stubborn(text: str) -> None:
        while not gate_is_open:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    gate_is_open = False

    async def main() -> None:
        nonlocal gate_is_open
        with pytest.raises(DeadlineError):
            await acc.arun(function_graph(stubborn), deadline_s=SOON_S, input="x")
        gate_is_open = True

    with opened() as acc:
        asyncio.run(main())


def test_a_function_that_was_not_started_in_time_is_never_started() -> None:
    started: list[str] = []
    with Gate() as gate, opened(call_threads=1) as acc:
        running = acc.submit(function_graph(lambda text: gate()), input="x")
        gate.wait_until_entered()
        with pytest.raises(DeadlineError):
            acc.run(function_graph(started.append), deadline_s=SOON_S, input="late")
        gate.open()
        running.result(PATIENCE_S)
    assert not started


# A stage that cannot end in time is not begun.
TAKES_S = 0.3


def slow(calls: list[str]) -> RAGraph:
    """Return a graph of one function that takes a while and notes its calls."""

    def work(text: str) -> str:
        calls.append(text)
        time.sleep(TAKES_S)
        return text.upper()

    return function_graph(work)


def test_the_error_names_the_stage_and_both_times() -> None:
    calls: list[str] = []
    with opened() as acc:
        graph = slow(calls)
        for _ in range(FEWEST_TIMES):
            assert acc.run(graph, input="a") == "A"
        began = time.monotonic()
        with pytest.raises(DeadlineError, match="not begun") as raised:
            acc.run(graph, input="late", deadline_s=TAKES_S / 2)
        assert time.monotonic() - began < TAKES_S / 2
        assert "late" not in calls
        error = raised.value
        assert "s0" in str(error.where)
        assert "s left" in str(error.found)
        assert float(str(error.valid).split()[0]) == pytest.approx(TAKES_S, abs=0.05)

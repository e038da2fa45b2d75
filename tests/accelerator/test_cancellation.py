"""Whoever leaves takes his request along: nothing of it runs, waits or is held any more."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest
from accel_harness import (
    PATIENCE_S,
    Gate,
    become_idle,
    function_graph,
    generation_graph,
    opened,
    reply,
    settle,
)

from rag_accel import END, START, RAGraph, RequestCancelledError
from rag_accel.testing import FakeEngine


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_coroutine_learns_of_its_cancellation_and_cleans_up_before_the_caller_goes_on() -> None:
    seen: list[str] = []
    began: asyncio.Event

    async def work(text: str) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            seen.append("cleaned up")
            raise

    async def main() -> None:
        nonlocal began
        began = asyncio.Event()
        task = asyncio.ensure_future(acc.arun(function_graph(work), input="x"))
        await began.wait()
        await cancelled(task)
        assert seen == ["cleaned up"]

    with opened() as acc:
        asyncio.run(main())


def test_a_coroutine_that_is_cancelled_before_it_began_is_reported_all_the_same() -> None:
    async def work(text: str) -> None:
        raise AssertionError("it never began")

    async def main() -> None:
        task = asyncio.ensure_future(acc.arun(function_graph(work), input="x"))
        await asyncio.sleep(0)
        # The loop stands still meanwhile, so that the call and the cancellation reach it at once.
        settle(acc)
        settle(acc)
        await cancelled(task)
        await asyncio.to_thread(become_idle, acc)

    with opened() as acc:
        for _ in range(20):
            asyncio.run(main())


@pytest.mark.parametrize("where", ["queued", "running", "in a function", "ended"])
def test_a_handle_can_be_cancelled_anywhere(where: str) -> None:
    with Gate() as gate, opened(llm=FakeEngine(compute=gate)) as acc:
        graph = function_graph(lambda text: gate()) if "function" in where else generation_graph()
        first = acc.submit(graph, input="x")
        gate.wait_until_entered()
        handle = acc.submit(graph, input="y") if where == "queued" else first
        if where == "ended":
            gate.open()
            assert handle.result(PATIENCE_S) == reply("x")
            handle.cancel()
            assert handle.result(PATIENCE_S) == reply("x")
            return
        handle.cancel()
        with pytest.raises(RequestCancelledError):
            handle.result(PATIENCE_S)
        assert handle.done
        gate.open()


def test_a_sync_caller_whose_request_failed_leaves_no_call_behind() -> None:
    """Of two calls given to one thread the first fails the request before the second begins."""
    ran: list[str] = []

    def fail(text: str) -> None:
        raise LookupError("no")

    graph = RAGraph()
    graph.add_generation("slow", prompt="{input}")
    graph.add_function("after", ran.append, inputs="slow")
    graph.add_function("fail", fail, inputs="input")
    graph.add_edge(START, ["slow", "fail"])
    graph.add_edge("slow", "after").add_edge(["after", "fail"], END)
    with opened(llm=FakeEngine()) as acc:
        for _ in range(100):
            with pytest.raises(LookupError):
                acc.run(graph, input="x")


@pytest.mark.parametrize("way", ["arun", "astream"])
def test_a_loop_closed_under_a_request_leaves_nothing_of_it(way: str) -> None:
    """``asyncio.run`` cancels its tasks first; a loop that is just closed does not."""

    async def never(text: str) -> None:
        await asyncio.Event().wait()

    async def consume() -> None:
        async for _ in acc.astream(function_graph(never), input="x"):
            pass

    def closing(start: Callable[[], Any]) -> None:
        loop = asyncio.new_event_loop()
        task = loop.create_task(start())
        for _ in range(20):
            loop.run_until_complete(asyncio.sleep(0.001))
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        for other in asyncio.all_tasks(loop):
            other._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()

    with opened() as acc:
        start = consume if way == "astream" else lambda: acc.arun(function_graph(never), input="x")
        closing(start)
        gc.collect()
        become_idle(acc)


@pytest.mark.parametrize("where", ["an engine", "a function"])
def test_a_task_without_references_is_not_collected_while_it_waits(where: str) -> None:
    async def main() -> None:
        release = asyncio.Event()
        found: asyncio.Queue[str] = asyncio.Queue()

        async def hold(text: str) -> str:
            await release.wait()
            return text

        async def ask(n: int) -> None:
            graph = generation_graph() if where == "an engine" else function_graph(hold)
            await found.put(await acc.arun(graph, input=str(n)))

        for n in range(10):
            asyncio.ensure_future(ask(n))  # noqa: RUF006 - that is the point
        for _ in range(5):
            await asyncio.sleep(0.001)
            gc.collect()
        gate.open()
        release.set()
        for _ in range(10):
            await asyncio.wait_for(found.get(), PATIENCE_S)

    with Gate() as gate, opened(llm=FakeEngine(compute=gate)) as acc:
        asyncio.run(main())

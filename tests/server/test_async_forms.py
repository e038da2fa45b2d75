"""Tasks wait for results without blocking their loop."""

from __future__ import annotations

import asyncio

import pytest
from server_harness import PATIENCE_S, Doors, generation, serving, wait_until_ended

from rag_accel import DeadlineError
from rag_accel.server import ServedResult, Server


async def test_a_loop_runs_on_while_tasks_wait() -> None:
    with Doors() as doors, serving(llm=doors) as server:
        first = server.add_request("a", generation())
        one = asyncio.create_task(server.aresult(first, PATIENCE_S))
        await asyncio.sleep(0)  # now it waits for the first, so the other is what is ready
        second = server.add_request("b", generation())
        many = asyncio.create_task(server.aready(None))
        doors.open("a", "b")
        assert await one == "A"
        assert [result.id for result in await many] == [second]


async def test_aready_does_not_wait_unless_told_to() -> None:
    with Doors() as doors, serving(llm=doors) as server:
        server.add_request("a", generation())
        assert await server.aready() == []
        assert await server.aready(0.01) == []
        doors.open("a")
        assert [result.output for result in await server.aready(PATIENCE_S)] == ["A"]


async def test_async_iteration_yields_what_ends_until_nothing_is_left() -> None:
    with serving(llm=str.upper) as server:
        for name in "abc":
            server.add_request(name, generation())
        assert sorted([result.output async for result in server]) == ["A", "B", "C"]


async def test_a_task_that_waited_too_long_leaves_the_result_to_the_others() -> None:
    with Doors() as doors, serving(llm=doors) as server:
        id = server.add_request("a", generation())
        with pytest.raises(DeadlineError):
            await server.aresult(id, 0.01)
        doors.open("a")
        assert (await server.await_result(id, PATIENCE_S)).output == "A"


async def test_a_cancelled_task_leaves_the_result_to_the_others() -> None:
    with Doors() as doors, serving(llm=doors) as server:
        id = server.add_request("a", generation())
        task = asyncio.create_task(server.aresult(id))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        doors.open("a")
        assert [result.id for result in await server.aready(PATIENCE_S)] == [id]


async def test_draining_waits_on_the_loop() -> None:
    with Doors() as doors, serving(llm=doors) as server:
        server.add_request("a", generation())
        assert await server.adrain(0.01) == []
        draining = asyncio.create_task(server.adrain(PATIENCE_S))
        await asyncio.sleep(0)
        doors.open("a")
        assert [result.output for result in await draining] == ["A"]


async def test_closing_wakes_a_caller_that_waits_for_nothing() -> None:
    server = Server(llm=str.upper)
    task = asyncio.create_task(server.aready(None))
    await asyncio.sleep(0)
    server.close()
    assert await asyncio.wait_for(task, PATIENCE_S) == []


def test_a_loop_closed_under_a_waiting_task_disturbs_no_other() -> None:
    async def abandon(server: Server) -> asyncio.Task[list[ServedResult]]:
        return asyncio.create_task(server.aready(None))

    with Doors() as doors, serving(llm=doors) as server:
        server.add_request("a", generation())
        loop = asyncio.new_event_loop()
        task = loop.run_until_complete(abandon(server))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        doors.open("a")
        wait_until_ended(server, 1)
        assert [result.output for result in server.ready()] == ["A"]
        task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue]
        task.get_coro().close()  # pyright: ignore[reportOptionalMemberAccess]

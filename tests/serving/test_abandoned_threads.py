"""A place is held until the threads of its request have come back, whoever gave it up before."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextvars import Context
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving_kit import HANG_S, AsgiCall, ScriptedProgram, served, serving_app, until
from test_tenant_shares import TwoTenants
from test_tenants_and_tokens import ANNA, BERT, token_file

from rag_accel.leaves.call_pool import CallPool
from rag_accel.leaves.request_threads import RequestThreads, request_threads
from rag_accel.serving.app import ServingApp
from rag_accel.serving.served import ServedAnswer
from rag_accel.serving.serving_options import ServingOptions
from rag_accel.serving.sync_steps import MOST_STEPS, RequestSteps, SyncSteps
from rag_accel.serving.tokens import TokenFile

PLACES = 3


class ThreadedProgram(ScriptedProgram):
    """A program whose one step runs in a thread until a test opens its gate."""

    def __init__(self, run: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        super().__init__()
        self._run, self.open = run, threading.Event()
        self.running = threading.Semaphore(0)

    async def answer(self, values: Mapping[str, Any], deadline_s: float | None) -> ServedAnswer:
        await self._run(self._step)
        return ServedAnswer("done", "done")

    def _step(self) -> None:
        self.running.release()
        assert self.open.wait(HANG_S)


async def in_executor(step: Callable[[], Any]) -> None:
    await asyncio.get_running_loop().run_in_executor(None, step)


@pytest.mark.parametrize("how", ["executor", "to_thread", "call pool"])
def test_while_threads_hold_all_places_a_client_is_refused_at_once(how: str) -> None:
    pool = CallPool(PLACES + 1)
    calls = {"executor": in_executor, "to_thread": asyncio.to_thread, "call pool": pool.run}
    program = ThreadedProgram(calls[how])
    with (
        served(program, max_requests=PLACES) as (host, port, _),
        httpx.Client(base_url=f"http://{host}:{port}", timeout=HANG_S) as client,
    ):

        def ask(**headers: str) -> httpx.Response:
            return client.post("/invoke", json={"input": "a"}, headers=headers)

        try:
            for _ in range(PLACES):
                assert ask(**{"X-Deadline-S": "0.2"}).status_code == 504
            for _ in range(PLACES):
                assert program.running.acquire(timeout=HANG_S)
            for _ in range(2 * PLACES):  # also one that comes back
                refused = ask()
                assert refused.status_code == 429
                assert int(refused.headers["retry-after"]) >= 1
                assert f"{PLACES} given up" in refused.json()["error"]["message"]
            assert gauge(client, "in_flight") == PLACES + 1  # and the one that asks
            assert gauge(client, "abandoned") == PLACES
            assert not program.running.acquire(blocking=False)
        finally:
            program.open.set()
        while gauge(client, "abandoned"):
            pass
        assert ask().status_code == 200
        assert gauge(client, "in_flight") == 1
    pool.close()


def gauge(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if f"requests_{name}{{" in line)


class CountedProgram(ScriptedProgram):
    """A program each of whose requests has a thread, as far as its count tells."""

    def __init__(self) -> None:
        super().__init__(gate=asyncio.Event())
        self.threads: list[RequestThreads] = []

    async def answer(self, values: Mapping[str, Any], deadline_s: float | None) -> ServedAnswer:
        threads = request_threads.get()
        assert threads is not None
        self.threads.append(threads)
        threads.__enter__()
        return await super().answer(values, deadline_s)


async def test_those_that_wait_are_refused_once_threads_hold_all_places() -> None:
    program = CountedProgram()
    app = serving_app(program, max_requests=1)
    asgi = app.asgi()
    first = AsgiCall(asgi, "/invoke", {"input": "a"})
    await program.begun.wait()
    second = AsgiCall(asgi, "/invoke", {"input": "b"})
    places = app.turns.of("").places
    await until(lambda: places.waiting == 1)
    first.leave()
    await asyncio.gather(first.task, second.task)
    assert second.status == 429
    assert (places.running, places.abandoned, places.waiting) == (1, 1, 0)
    program.threads[0].__exit__()
    await until(lambda: places.running == 0)
    assert (places.abandoned, app.http.in_flight[""]) == (0, 0)


async def test_a_request_that_fails_beside_its_thread_keeps_its_place_and_refuses_no_other() -> (
    None
):
    program = CountedProgram()
    app = serving_app(program, max_requests=1)
    asgi = app.asgi()
    program.error = RuntimeError("one of two steps failed")
    first = AsgiCall(asgi, "/invoke", {"input": "a"})
    await program.begun.wait()
    second = AsgiCall(asgi, "/invoke", {"input": "b"})
    places = app.turns.of("").places
    await until(lambda: places.waiting == 1)
    assert program.gate is not None
    program.gate.set()
    await first.task
    assert (places.running, places.waiting) == (1, 1)
    program.threads[0].__exit__()
    await until(lambda: program.num_begun == 2)
    program.threads[1].__exit__()
    await second.task
    assert (first.status, second.status, places.running) == (500, 500, 0)


async def test_threads_of_a_tenant_that_hold_the_places_of_all_let_no_other_hang(
    tmp_path: Path,
) -> None:
    tokens = TokenFile(token_file(tmp_path, f"{ANNA} anna\n{BERT} bert\n"))
    program = CountedProgram()
    options = ServingOptions(max_requests=1, max_requests_per_tenant=1)
    app = ServingApp(TwoTenants(program), options, tokens)
    asgi = app.asgi()

    def ask(token: str) -> AsgiCall:
        header = (b"authorization", f"Bearer {token}".encode())
        return AsgiCall(asgi, "/invoke", {"input": "a"}, [header])

    anna = ask(ANNA)
    await program.begun.wait()
    waiting = ask(BERT)
    await until(lambda: app.turns.of("bert").waiting == 1)
    anna.leave()
    newcomer = ask(BERT)
    await asyncio.gather(anna.task, waiting.task, newcomer.task)
    assert (waiting.status, newcomer.status) == (429, 429)
    program.threads[0].__exit__()
    await until(lambda: app.turns.of("anna").places.running == 0)
    assert program.gate is not None
    program.gate.set()
    last = ask(BERT)
    await until(lambda: len(program.threads) == 2)
    program.threads[1].__exit__()
    await last.task
    assert last.status == 200


def test_no_request_waits_for_the_threads_of_another() -> None:
    gate, all_run = threading.Event(), threading.Barrier(2 * MOST_STEPS + 1)
    steps = SyncSteps(2)

    def step(number: int) -> int:
        if number < MOST_STEPS:
            all_run.wait(HANG_S)
        assert gate.wait(HANG_S)
        return number

    def ask() -> list[Future[int]]:
        request_threads.set(RequestSteps())
        return [steps.submit(step, number) for number in range(3 * MOST_STEPS)]

    asked = [Context().run(ask) for _ in range(2)]
    all_run.wait(HANG_S)  # as many of each run at once
    asked[0][-1].cancel()
    gate.set()
    for futures in asked:
        assert [future.result(HANG_S) for future in futures[:-1]] == list(range(len(futures) - 1))
    steps.shutdown()


def test_a_step_whose_thread_cannot_be_started_fails_alone() -> None:
    steps = RequestSteps()
    begun: list[str] = []

    def refuse(*arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.raises(RuntimeError, match="can't start"):
        steps.start(lambda: begun.append("refused"), refuse)
    steps.start(lambda: begun.append("next"), lambda work, worker: work(worker))
    assert begun == ["next"]

"""Overload over HTTP: who is refused is told when to come back, and is served when it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import httpx
from serving_kit import HANG_S, ScriptedProgram, served

from rag_accel.serving.http_server import DrainingServer
from rag_accel.serving.served import ServedAnswer
from rag_accel.testing import ManualClock

PLACES, DURATION_S = 2, 2.0
#: played seconds under load, and newcomers in each: three times what the places can serve
SECONDS, NEWCOMERS = 20, 3


class GatedProgram(ScriptedProgram):
    """A program each of whose answers waits until one more may go."""

    def __init__(self) -> None:
        super().__init__()
        self._may_go = asyncio.Semaphore(0)
        self.answered: list[str] = []

    async def answer(self, values: Mapping[str, Any], deadline_s: float | None) -> ServedAnswer:
        self.num_begun += 1
        await self._may_go.acquire()
        self.answered.append(values["input"])
        return ServedAnswer(values["input"], values["input"])

    def let_go(self, server: DrainingServer) -> None:
        server.loop.call_soon_threadsafe(self._may_go.release)


class PlayedClients:
    """Clients of a server in a thread, whose seconds pass when a test says so."""

    def __init__(self, client: httpx.AsyncClient, clock: ManualClock) -> None:
        self._client, self._clock = client, clock
        self.asked: list[tuple[str, asyncio.Task[httpx.Response]]] = []
        #: the names of those that were told to come back, with the time
        self.due: list[tuple[float, str]] = []
        self.returned: set[str] = set()
        self.refused_again: set[str] = set()

    def ask(self, name: str) -> None:
        call = self._client.post("/invoke", json={"input": name})
        self.asked.append((name, asyncio.ensure_future(call)))

    def come_back(self) -> None:
        """Have those come back whose time has come."""
        now = self._clock.now()
        ready = [name for at, name in self.due if at <= now]
        self.due = [(at, name) for at, name in self.due if at > now]
        self.returned.update(ready)
        for name in ready:
            self.ask(name)

    def take_answers(self) -> int:
        """Take the answers that came; return how many were served."""
        over = [(name, task.result()) for name, task in self.asked if task.done()]
        self.asked = [(name, task) for name, task in self.asked if not task.done()]
        for name, answer in over:
            if answer.status_code == 429:
                if name in self.returned:
                    self.refused_again.add(name)
                after_s = int(answer.headers["retry-after"])
                assert after_s >= 1
                self.due.append((self._clock.now() + after_s, name))
            else:
                assert answer.json() == {"output": name}
        return sum(answer.status_code == 200 for _, answer in over)

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Ask the server for its health, and so let it work, until something is so."""
        async with asyncio.timeout(HANG_S):
            while not is_so():
                await self._client.get("/healthz")


async def test_nearly_all_that_come_back_when_they_were_told_are_served() -> None:
    clock, program = ManualClock(), GatedProgram()
    limits = httpx.Limits(max_connections=None)
    with served(program, clock, max_requests=PLACES) as (host, port, server):
        async with httpx.AsyncClient(
            base_url=f"http://{host}:{port}", timeout=HANG_S, limits=limits
        ) as client:
            played = PlayedClients(client, clock)
            num_served = 0

            async def settle() -> None:
                """Wait until each request runs, waits or was refused."""
                nonlocal num_served
                turns = server_turns(server)

                def is_settled() -> bool:
                    nonlocal num_served
                    num_served += played.take_answers()
                    admission = turns.admission
                    return len(played.asked) == admission.running + admission.waiting

                await played.until(is_settled)

            for second in range(SECONDS):
                for number in range(NEWCOMERS):
                    played.ask(f"{second}.{number}")
                played.come_back()
                await settle()
                clock.advance(DURATION_S / PLACES)
                before = len(program.answered)
                program.let_go(server)
                await played.until(lambda before=before: len(program.answered) == before + 1)
                await settle()
            for _ in range(len(played.asked)):
                program.let_go(server)
            await played.until(lambda: all(task.done() for _, task in played.asked))
            num_served += played.take_answers()
    assert len(played.returned) >= SECONDS / 3, "too few came back to tell"
    assert len(played.refused_again) <= 0.05 * len(played.returned)
    assert num_served >= SECONDS
    assert played.due  # the load was more than could be served


def server_turns(server: DrainingServer) -> Any:
    return server._app.turns.of("")

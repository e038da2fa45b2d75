"""An object that raises what ends tasks, loops or processes ends its own request, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest
from serving_kit import HANG_S, ScriptedProgram, client_of, served, serving_app

from rag_accel.serving.served import ServedAnswer, ServedPiece


class OwnExit(BaseException):
    """What a program ends itself with."""


EXITS = [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit(), OwnExit()]


@pytest.mark.parametrize("path", ["/invoke", "/stream"])
@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
async def test_an_exit_is_an_error_with_an_id(
    error: Any, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = serving_app(ScriptedProgram(error=error))
    async with client_of(app) as client:
        answer = await client.post(path, json={"input": "a"})
        metrics = (await client.get("/metrics")).text
    assert answer.status_code == 500
    assert answer.json()["error"]["message"].split()[-1] in caplog.text
    assert type(error).__name__ in caplog.text
    assert f'route="{path}",status="500"}} 1.0' in metrics
    assert app.turns.of("").places.running == 0


@pytest.mark.parametrize("error", EXITS, ids=lambda error: type(error).__name__)
async def test_an_exit_in_mid_stream_is_an_event(error: Any) -> None:
    async with client_of(serving_app(ScriptedProgram(error=error, fails_after=1))) as client:
        told = (await client.post("/stream", json={"input": "two words"})).text
    assert '{"text": "two"}' in told
    assert "\nevent: error\ndata: " in told
    assert told.endswith("data: [DONE]\n\n")


class ForkingProgram(ScriptedProgram):
    """A program whose tasks and callbacks exit."""

    def __init__(self) -> None:
        super().__init__()
        self.exited = asyncio.Event()

    async def answer(self, values: Mapping[str, Any], deadline_s: float | None) -> ServedAnswer:
        if values["input"] == "callback":
            asyncio.get_running_loop().call_soon(self._exit)
            await asyncio.Event().wait()
        await asyncio.gather(self._fail())
        raise AssertionError("not reached")

    async def stream(
        self, values: Mapping[str, Any], deadline_s: float | None
    ) -> AsyncIterator[ServedPiece]:
        yield ServedPiece("begun")
        await self.exited.wait()
        yield ServedPiece("whole")

    async def _fail(self) -> None:
        self._exit()

    def _exit(self) -> None:
        raise SystemExit(3)


def test_an_exit_in_a_task_or_callback_of_the_program_leaves_other_requests_whole() -> None:
    program = ForkingProgram()
    with (
        served(program) as (host, port, server),
        httpx.Client(base_url=f"http://{host}:{port}", timeout=HANG_S) as client,
        client.stream("POST", "/stream", json={"input": "a"}) as other,
    ):
        lines = other.iter_lines()
        assert next(lines) == 'data: {"text": "begun"}'
        assert client.post("/invoke", json={"input": "task"}).status_code == 500
        late = client.post("/invoke", json={"input": "callback"}, headers={"X-Deadline-S": "0.1"})
        assert late.status_code == 504
        server.loop.call_soon_threadsafe(program.exited.set)
        assert [line for line in lines if line] == ['data: {"text": "whole"}', "data: [DONE]"]
        assert client.get("/healthz").status_code == 200

"""Tokens that are read again: new tenants are made beside requests, and those gone are let go."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
from serving_kit import HANG_S, AsgiCall, client_of, until
from test_tenants_and_tokens import ANNA, BERT, LangChainOnly, bearing, token_file

from rag_accel.accelerator import Accelerator
from rag_accel.errors import ConfigError
from rag_accel.graph.nodes import END, START
from rag_accel.graph.ragraph import RAGraph
from rag_accel.serving import tenants as tenants_module
from rag_accel.serving.app import ServingApp
from rag_accel.serving.http_server import DrainingServer
from rag_accel.serving.serving_options import ServingOptions
from rag_accel.serving.target import ServingTarget
from rag_accel.serving.tenants import ServedTenants
from rag_accel.serving.tokens import TokenFile


class ReloadedApp:
    """An application with a file of tokens, and an object for each tenant made by ``make``."""

    def __init__(self, folder: Path, make: Callable[[str], Any]) -> None:
        self.path = token_file(folder, f"{ANNA} anna")
        registry: Any = LangChainOnly()
        self.tenants = ServedTenants(ServingTarget("bot", None, make=make), registry=registry)
        options = ServingOptions(max_requests_per_tenant=4)
        self.app = ServingApp(self.tenants, options, TokenFile(self.path))
        self.asgi = self.app.asgi()

    def ask(self, token: str) -> AsgiCall:
        header = (b"authorization", f"Bearer {token}".encode())
        return AsgiCall(self.asgi, "/invoke", {"input": "hi"}, [header])

    async def reload(self, text: str) -> None:
        self.path.write_text(text)
        await self.app.reload_tokens()


def echo(namespace: str) -> Any:
    return RunnableLambda(lambda text: f"{namespace}: {text}")


async def closed(accelerator: Accelerator) -> None:
    async with asyncio.timeout(HANG_S):
        while not accelerator.closed:
            await asyncio.to_thread(threading.Event().wait, 0.001)


async def test_requests_are_answered_while_the_object_of_a_new_tenant_is_made(
    tmp_path: Path,
) -> None:
    making, may_end = threading.Event(), threading.Event()

    def make(namespace: str) -> Any:
        if namespace == "bert":
            making.set()
            assert may_end.wait(HANG_S)
        return echo(namespace)

    served = ReloadedApp(tmp_path, make)
    reload = asyncio.create_task(served.reload(f"{ANNA} anna\n{BERT} bert"))
    assert await asyncio.to_thread(making.wait, HANG_S)
    async with client_of(served.asgi) as client:
        asked = {"input": "hi"}
        for token, status in ((ANNA, 200), (BERT, 401)):
            answer = await client.post("/invoke", json=asked, headers=bearing(token))
            assert answer.status_code == status
        assert not reload.done()
        may_end.set()
        await reload
        answer = await client.post("/invoke", json=asked, headers=bearing(BERT))
        assert answer.json() == {"output": "bert: hi"}
    served.tenants.close()


FAILURES = [RuntimeError, SystemExit, asyncio.CancelledError, KeyboardInterrupt]


@pytest.mark.parametrize("error", FAILURES)
async def test_tokens_stay_where_the_object_of_a_new_tenant_cannot_be_made(
    error: type[BaseException], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def make(namespace: str) -> Any:
        if namespace == "carl":
            raise error  # an instance of the module's would hold frames, and programs in them
        return echo(namespace)

    served = ReloadedApp(tmp_path, make)
    server = DrainingServer(served.app, ServingOptions(), print)
    server.loop = asyncio.get_running_loop()
    served.path.write_text(f"{BERT} bert\n{BERT}-too carl")
    with caplog.at_level(logging.ERROR):
        server._reload_soon()
        await until(lambda: server._reloading is not None)
        assert server._reloading is not None
        await server._reloading
    assert "tokens stay as they were" in caplog.text
    assert error.__name__ in caplog.text
    assert "Exception in callback" not in caplog.text
    assert served.tenants.names == ("anna",)
    call = served.ask(ANNA)
    await call.task
    assert call.status == 200
    served.tenants.close()


async def test_signals_during_a_reload_cause_one_more(tmp_path: Path) -> None:
    served = ReloadedApp(tmp_path, echo)
    server = DrainingServer(served.app, ServingOptions(), print)
    server.loop = asyncio.get_running_loop()
    reading, may_end, num_read = threading.Event(), threading.Event(), 0
    read = TokenFile.read

    class CountedFile(TokenFile):
        def read(self) -> dict[bytes, str]:
            nonlocal num_read
            num_read += 1
            reading.set()
            assert may_end.wait(HANG_S)
            return read(self)

    assert served.app._tokens is not None
    served.app._tokens.__class__ = CountedFile
    server._begin_reload()
    assert await asyncio.to_thread(reading.wait, HANG_S)
    for _ in range(3):
        server._begin_reload()
    may_end.set()
    assert server._reloading is not None
    await server._reloading
    assert num_read == 2
    served.tenants.close()


async def test_a_tenant_that_no_token_names_is_closed_after_its_last_request(
    tmp_path: Path,
) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    def make(namespace: str) -> Any:
        async def answer(text: str) -> str:
            begun.set()
            await gate.wait()
            return f"{namespace}: {text}"

        return RunnableLambda(answer)

    served = ReloadedApp(tmp_path, make)
    anna = served.tenants.accelerators["anna"]
    call = served.ask(ANNA)
    await begun.wait()
    await served.reload(f"{BERT} bert")
    assert not anna.closed
    refused = served.ask(ANNA)
    await refused.task
    assert refused.status == 401
    await served.reload(f"{ANNA} anna")  # back, while it drains: the same one
    assert served.tenants.accelerators["anna"] is anna
    second = served.ask(ANNA)
    await until(lambda: served.app.http.in_flight["anna"] == 2)
    await served.reload(f"{BERT} bert")
    gate.set()
    await asyncio.gather(call.task, second.task)
    assert (call.status, second.status) == (200, 200)
    await closed(anna)
    assert served.tenants.names == ("bert",)
    await served.reload(f"{ANNA} anna\n{BERT} bert")  # back after its end: a new one
    last = served.ask(ANNA)
    await last.task
    assert last.status == 200
    served.tenants.close()


async def test_a_tenant_that_a_failed_reload_names_is_dropped_all_the_same(tmp_path: Path) -> None:
    def make(namespace: str) -> Any:
        if namespace == "carl":
            raise RuntimeError("no")
        return echo(namespace)

    served = ReloadedApp(tmp_path, make)
    anna = served.tenants.accelerators["anna"]
    served.app.http.begin("anna")  # a request of hers is under way
    await served.reload(f"{BERT} bert")
    with pytest.raises(RuntimeError):
        await served.reload(f"{ANNA} anna\n{BERT}-too carl")
    assert not anna.closed
    served.app.http.end("anna", "/invoke", 200, 0.0)
    served.app._leave("anna")
    await closed(anna)
    served.tenants.close()


async def test_reloads_with_new_names_leave_no_thread_and_never_fill_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenants_module, "MOST_TENANTS", 2)
    made: list[Accelerator] = []

    def make(namespace: str) -> Any:
        graph = RAGraph()
        graph.add_generation(0, prompt="{input}", output="said")
        graph.add_edge(START, 0).add_edge(0, END)
        made.append(Accelerator(llm=lambda prompt: prompt, namespace=namespace))
        return graph, made[-1]

    served = ReloadedApp(tmp_path, make)
    for number in range(4):
        await served.reload(f"{ANNA} a-{number}\n{BERT} b-{number}")
        for token in (ANNA, BERT):
            call = served.ask(token)
            await call.task
            assert call.status == 200
    for accelerator in made[:-2]:
        await closed(accelerator)
    assert served.tenants.names == ("a-3", "b-3")
    assert sorted(served.app.turns._own) == ["a-3", "b-3"]
    with pytest.raises(ConfigError, match="too many tenants"):
        await served.reload(f"{ANNA} a\n{BERT} b\n{ANNA}-too c")
    served.tenants.close()
    assert all(accelerator.closed for accelerator in made)

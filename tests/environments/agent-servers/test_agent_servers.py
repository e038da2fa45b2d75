"""Accelerated programs inside the servers in which people run workflows and pipelines."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("llama_agents.server")

import served_programs
import uvicorn
from llama_agents.client import WorkflowClient
from llama_agents.server import WorkflowServer
from served_programs import TEXTS

CALLERS = 16
#: bounds a hang; nothing is measured
START_S = 60.0

pytestmark = pytest.mark.timeout(180)


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


async def answers_of(client: WorkflowClient, name: str) -> list[Any]:
    started = [{"question": f"When? {number}"} for number in range(CALLERS)]
    runs = (client.run_workflow(name, start_event=one) for one in started)
    return [(run.status, run.result) for run in await asyncio.gather(*runs)]


async def events_of(client: WorkflowClient, name: str) -> list[Any]:
    run = await client.run_workflow_nowait(name, start_event={"question": "When?"})
    events = [event async for event in client.get_workflow_events(run.handler_id)]
    return [(event.type, event.value) for event in events]


async def test_a_workflow_answers_and_streams_in_llama_agents_server_as_before() -> None:
    server, port = WorkflowServer(), free_port()
    server.add_workflow("plain", served_programs.plain)
    server.add_workflow("fast", served_programs.fast)
    served = uvicorn.Server(uvicorn.Config(server.app, port=port))
    serving = asyncio.create_task(served.serve())
    client = WorkflowClient(base_url=f"http://127.0.0.1:{port}")
    until = time.monotonic() + START_S
    while True:
        try:
            await client.is_healthy()
            break
        except httpx.HTTPError:
            assert time.monotonic() < until
            await asyncio.sleep(0.05)
    began = _scheduled()
    fast = await answers_of(client, "fast")
    assert _scheduled() > began
    assert fast == await answers_of(client, "plain")
    assert await events_of(client, "fast") == await events_of(client, "plain")
    assert served_programs.accelerator.bypassed == {}
    served.should_exit = True
    await serving


def _scheduled() -> int:
    engines: Any = served_programs.accelerator.metrics.snapshot().get("engines", {})
    return sum(engine["items"] for engine in engines.values())


WRAPPER = """
from hayhooks import BasePipelineWrapper
from served_programs import engine

class PipelineWrapper(BasePipelineWrapper):
    def setup(self) -> None:
        self.pipeline = None

    async def run_api_async(self, question: str) -> list[str]:
        response = await engine.aquery(question)
        return sorted(node.text for node in response.source_nodes)
"""


@pytest.fixture
def hayhooks(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "pipelines" / "asking"
    folder.mkdir(parents=True)
    (folder / "pipeline_wrapper.py").write_text(WRAPPER)
    port = free_port()
    command = [str(Path(sys.executable).with_name("hayhooks")), "run", "--port", str(port)]
    command += ["--pipelines-dir", str(folder.parent)]
    command += ["--additional-python-path", str(Path(__file__).parent)]
    environment = {**os.environ, "HAYSTACK_TELEMETRY_ENABLED": "False"}
    with (tmp_path / "output.txt").open("w") as out:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=out, stderr=subprocess.STDOUT
        )
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + START_S
        while True:
            assert process.poll() is None, (tmp_path / "output.txt").read_text()
            assert time.monotonic() < until
            try:
                if httpx.get(f"{url}/status").json()["pipelines"]:
                    break
            except httpx.HTTPError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(30)


async def test_a_query_engine_answers_in_hayhooks(hayhooks: str) -> None:
    async with httpx.AsyncClient(base_url=hayhooks, timeout=60) as client:
        asked = ({"question": f"When? {number}"} for number in range(CALLERS))
        answers = await asyncio.gather(*(client.post("/asking/run", json=one) for one in asked))
    assert [answer.json() for answer in answers] == [{"result": sorted(TEXTS)}] * CALLERS

"""Accelerated graphs in the server of ``langgraph dev``, whose loop refuses blocking calls."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

GRAPHS = Path(__file__).with_name("served_graphs.py")
CALLERS = 32
#: bound hangs; nothing is measured
START_S, ANSWER_S, STOP_S = 60.0, 60.0, 20.0

pytestmark = pytest.mark.timeout(180)


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start the server over the graphs, and stop it at the end."""
    folder = tmp_path_factory.mktemp("app")
    shutil.copy(GRAPHS, folder)
    names = ("plain_awaited", "plain_sync", "awaited", "sync", "blocking")
    names += ("bounded_awaited", "bounded_sync")
    served = {name: f"./{GRAPHS.name}:{name}" for name in names}
    config = {"dependencies": ["."], "graphs": served}
    (folder / "langgraph.json").write_text(json.dumps(config))
    port = free_port()
    command = [str(Path(sys.executable).with_name("langgraph")), "dev", "--no-browser"]
    command += ["--no-reload", "--port", str(port), "--n-jobs-per-worker", str(CALLERS)]
    environment = {**os.environ, "LANGGRAPH_CLI_NO_ANALYTICS": "1", "LANGSMITH_TRACING": "false"}
    output = folder / "output.txt"
    with output.open("w") as out:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        address = f"http://127.0.0.1:{port}"
        wait_until_it_serves(process, address, output)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_it_serves(process: subprocess.Popen[bytes], url: str, output: Path) -> None:
    end = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < end:
        try:
            if httpx.get(f"{url}/ok", timeout=5).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    pytest.fail(f"langgraph dev does not serve (exit {process.poll()}):\n{output.read_text()}")


def call(graph: str, text: str) -> dict[str, Any]:
    return {"assistant_id": graph, "input": {"question": text}}


def ask_at_once(url: str, graph: str) -> list[dict[str, Any]]:
    """Return the last states of runs that all callers ask for at once."""

    async def ask_all() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=CALLERS)
        async with httpx.AsyncClient(base_url=url, timeout=ANSWER_S, limits=limits) as client:
            asked = (
                client.post("/runs/wait", json=call(graph, f"q{number}"))
                for number in range(CALLERS)
            )
            return await asyncio.gather(*asked)

    answers = asyncio.run(ask_all())
    assert [answer.status_code for answer in answers] == [200] * CALLERS
    return [answer.json() for answer in answers]


def texts(states: list[dict[str, Any]]) -> list[str]:
    return [state["answer"] for state in states]


@pytest.mark.parametrize("store", ["awaited", "sync"])
@pytest.mark.parametrize("bound", ["", "bounded_"])
def test_runs_at_once_are_all_answered_as_without_acceleration(
    url: str, store: str, bound: str
) -> None:
    expected = texts(ask_at_once(url, f"plain_{store}"))
    assert expected == [f"found q{number}" for number in range(CALLERS)]
    assert texts(ask_at_once(url, bound + store)) == expected


def test_the_servers_copies_of_a_graph_are_bounded_by_its_accelerator(url: str) -> None:
    plain, bounded = (ask_at_once(url, name) for name in ("plain_awaited", "bounded_awaited"))
    assert max(state["most_running"] for state in plain) > 4
    assert max(state["most_running"] for state in bounded) <= 4


def events(url: str, graph: str) -> list[tuple[str, Any]]:
    """Return the kind and the data of each event of a streamed run, without what others count."""
    asked = {**call(graph, "q"), "stream_mode": ["updates", "values"]}
    answer = httpx.post(f"{url}/runs/stream", json=asked, timeout=ANSWER_S)
    found, kind = [], ""
    for name, _, text in (line.partition(": ") for line in answer.text.splitlines()):
        if name == "event":
            kind = text
        elif name == "data" and kind != "metadata":
            found.append((kind, json.loads(text, object_hook=without_counts)))
    return found


def without_counts(value: dict[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in value.items() if name != "most_running"}


def test_a_stream_has_the_events_of_the_plain_graph(url: str) -> None:
    expected = events(url, "plain_awaited")
    answer = {"answer": "found q", "answers": ["found q"]}
    assert ("updates", {"search": answer}) in expected
    assert ("values", {"question": "q", **answer}) in expected
    assert events(url, "awaited") == expected


def test_a_thread_keeps_its_state(url: str) -> None:
    with httpx.Client(base_url=url, timeout=ANSWER_S) as client:
        thread = client.post("/threads", json={}).json()["thread_id"]
        for text in ("first", "second"):
            state = client.post(f"/threads/{thread}/runs/wait", json=call("awaited", text)).json()
    assert state["answers"] == ["found first", "found second"]


def test_the_server_refuses_a_graph_that_blocks(url: str) -> None:
    answer = httpx.post(f"{url}/runs/wait", json=call("blocking", "q"), timeout=ANSWER_S)
    assert answer.json()["__error__"]["error"] == "BlockingError"

"""``rag-accel serve`` as a process: a chain of LangChain answers over HTTP until SIGTERM."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
from serving_kit import ROOT, serving_process

from rag_accel.cli import main

CHAIN = """
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.prompts import ChatPromptTemplate
from itertools import repeat

model = GenericFakeChatModel(messages=repeat(AIMessage("Built in 1932 of steel.")))
chain = ChatPromptTemplate.from_template("Answer: {question}") | model
"""


@pytest.mark.timeout(120)
def test_a_chain_answers_streams_and_drains(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(CHAIN)
    options = ("--allow-host", "rag.example.org", "--max-requests-per-tenant", "4")
    with serving_process(tmp_path, "app:chain", "--input", "question", *options) as (process, url):
        asked = {"question": "When was it built?"}
        with httpx.Client(base_url=url, timeout=30) as client:
            whole = client.post("/invoke", json=asked)
            assert whole.json() == {"output": "Built in 1932 of steel."}, whole.text
            with client.stream("POST", "/stream", json=asked) as response:
                events = [line[6:] for line in response.iter_lines() if line]
            assert events[-1] == "[DONE]"
            texts = [json.loads(event)["text"] for event in events[:-1]]
            assert len(texts) > 1
            assert "".join(texts) == "Built in 1932 of steel."
            assert client.get("/healthz").json() == {"state": "ready"}
            assert "server" not in whole.headers
            for host, status in (("rag.example.org", 200), ("other.example.org", 421)):
                answer = client.post("/invoke", json=asked, headers={"Host": host})
                assert answer.status_code == status
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as bot:
            answer = bot.chat.completions.create(
                model="chain", messages=[{"role": "user", "content": "When?"}]
            )
            assert answer.choices[0].message.content == "Built in 1932 of steel."
            assert [model.id for model in bot.models.list()] == ["chain"]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")


def test_an_object_that_is_not_there_is_told_in_a_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for spec in ("no_such_module:chain", "json:no_such_name", "json"):
        assert main(["serve", spec]) == 2
        line = capsys.readouterr().err
        assert line.startswith("rag-accel: [RA100] ")
        assert line.count("\n") == 1


def test_an_open_address_needs_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "json:dumps", "--host", "0.0.0.0"]) == 2
    assert "--token-file" in capsys.readouterr().err


SLOW = """
import asyncio, pathlib
from langchain_core.runnables import RunnableLambda

async def answer(text):
    pathlib.Path(f"begun-{text}").touch()
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.02)
    return text

chain = RunnableLambda(answer)

def make():
    return chain
"""


@pytest.mark.processes
def test_nothing_admitted_is_lost_at_sigterm(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SLOW)
    with serving_process(tmp_path, "app:make") as (process, url), ThreadPoolExecutor(8) as pool:
        asked = [
            pool.submit(httpx.post, f"{url}/invoke", json={"input": str(number)}, timeout=60)
            for number in range(8)
        ]
        wait_for(lambda: len(list(tmp_path.glob("begun-*"))) == 8)
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: not is_open(url))
        (tmp_path / "go").touch()
        answers = [future.result() for future in asked]
        assert [answer.json()["output"] for answer in answers] == [str(n) for n in range(8)]
        assert process.wait(60) == 0


@pytest.mark.processes
def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SLOW)
    with serving_process(tmp_path, "app:chain") as (process, url), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx.post, f"{url}/invoke", json={"input": "a"}, timeout=60)
        wait_for((tmp_path / "begun-a").exists)
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: not is_open(url))
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        with pytest.raises(httpx.TransportError):
            asked.result()


@pytest.mark.processes
def test_tokens_are_read_again_at_a_signal(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SLOW)
    (tmp_path / "go").touch()
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text("a-token-of-anna-01 anna")
    arguments = ("app:chain", "--token-file", str(tokens))

    def status(url: str, token: str) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.post(f"{url}/invoke", json={"input": "a"}, headers=headers).status_code

    with serving_process(tmp_path, *arguments) as (process, url):
        assert status(url, "a-token-of-anna-01") == 200
        tokens.write_text("a-token-of-bert-01 bert")
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: status(url, "a-token-of-bert-01") == 200)
        assert status(url, "a-token-of-anna-01") == 401
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_a_missing_package_is_told_with_its_extra() -> None:
    program = (
        "import sys; sys.modules['starlette'] = None; from rag_accel.cli import main; "
        "sys.exit(main(['serve', 'json:dumps']))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install 'rag-accel[serve]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.processes
def test_curl_and_openai_as_the_page_shows_them(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "serving.md").read_text()
    module = re.search(r"```python\n(# app.py\n.*?)```", page, re.DOTALL)
    assert module is not None
    (tmp_path / "app.py").write_text(module[1])
    line = re.search(r"rag-accel serve (.*)", page)
    asked = re.search(r"(curl .*)\n(\{.*\})\n", page)
    client = re.search(r"(client = openai.*?)\n(client\..*?)\n```", page)
    assert line is not None
    assert asked is not None
    assert client is not None
    with serving_process(tmp_path, *shlex.split(line[1])) as (_, url):
        words = shlex.split(asked[1].replace("http://127.0.0.1:8000", url))
        assert asked_by(words) == asked[2]
        names = {"openai": openai}
        exec(client[1].replace("http://127.0.0.1:8000", url), names)
        with names["client"]:
            made = eval(client[2], names)
        assert made.choices[0].message.content == json.loads(asked[2])["output"]


def asked_by(words: list[str]) -> str:
    """Return what a line of ``curl`` prints, or would print where there is none."""
    if shutil.which(words[0]):
        command = [*words, "--silent", "--show-error", "--noproxy", "*"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout
    headers = dict([words[words.index("-H") + 1].split(": ")])
    data = words[words.index("-d") + 1]
    return httpx.post(words[1], content=data, headers=headers, timeout=60).text


def wait_for(is_so: Callable[[], bool]) -> None:
    """Wait until something is so; fail after a minute."""
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until, "it never came to be"
        time.sleep(0.02)


def is_open(url: str) -> bool:
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), 10).close()
    except OSError:
        return False
    return True


COUNTED = """
import atexit, gc, pathlib
from langchain_core.runnables import RunnableLambda

def note():
    frozen, others = gc.get_freeze_count(), len(gc.get_objects())
    pathlib.Path("frozen").write_text(str(frozen > 100 * others))

atexit.register(note)
chain = RunnableLambda(str)
"""


@pytest.mark.processes
def test_no_collection_of_garbage_delays_the_end(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(COUNTED)
    with serving_process(tmp_path, "app:chain") as (process, url):
        assert httpx.post(f"{url}/invoke", json={"input": "a"}, timeout=60).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert (tmp_path / "frozen").read_text() == "True"


STUCK = """
import pathlib, threading
from langchain_core.runnables import RunnableLambda
from rag_accel.serving import http_server

http_server._LAST_S = 6.0  # else this test would last longer

def answer(text):
    pathlib.Path(f"begun-{text}").touch()
    threading.Event().wait()

chain = RunnableLambda(answer)
"""


@pytest.mark.processes
@pytest.mark.parametrize("is_plain", [False, True])
def test_a_thread_that_is_stuck_beyond_the_time_to_drain_ends_the_process(
    is_plain: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAG_ACCEL_SHUTDOWN_S", "0.2")
    (tmp_path / "app.py").write_text(STUCK)
    arguments = ("app:chain", "--drain-s", "0.2", *["--plain"] * is_plain)
    with serving_process(tmp_path, *arguments) as (process, url), ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx.post, f"{url}/invoke", json={"input": "a"}, timeout=60)
        wait_for((tmp_path / "begun-a").exists)
        process.send_signal(signal.SIGTERM)
        assert asked.result().status_code == 503  # told before the end
        assert process.wait(60) == 1

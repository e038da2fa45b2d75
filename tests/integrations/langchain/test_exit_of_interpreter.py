"""Interpreters that exit while daemon threads wait for answers of a local model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

import tiny_chat

pytestmark = pytest.mark.processes

PATIENCE_S = 100.0
#: A program that exits while a thread of it waits for an answer. It waits for that thread at exit,
#: after all that our packages do then, which are imported later. Its model is loaded before: who
#: exits while a thread is in torch dies of SIGABRT, with us or without.
PROGRAM = """
import asyncio, atexit, threading

atexit.register(lambda: thread.join(60))

from fake_runner import tokenizer
from tiny_chat import model
from langchain_rag_accel import ChatRagAccel
from rag_accel.engines.llm.local.model.runner import PackedRunner

has_begun, compute = threading.Event(), PackedRunner.run

def run(runner, rows):
    has_begun.set()
    return compute(runner, rows)

def ask():
    ASK

chat = ChatRagAccel(model=model(), tokenizer=tokenizer(), max_tokens=1500)
chat.invoke("How high is it?", max_tokens=2)
PackedRunner.run = run
thread = threading.Thread(target=ask, daemon=True)
thread.start()
assert has_begun.wait(60)
"""
WAYS = {
    "invoke": "chat.invoke('How high is it?')",
    "stream": "list(chat.stream('How high is it?'))",
    "tasks": "asyncio.run(chat.abatch(['How high is it?', 'How low is it?']))",
}


def run_to_its_end(ask: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(Path(tiny_chat.__file__).parent), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("ASK", ask)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": paths},
    )


@pytest.mark.parametrize("ask", WAYS.values(), ids=WAYS)
def test_a_daemon_thread_that_waits_for_an_answer_ends_quietly(ask: str) -> None:
    done = run_to_its_end(ask)
    assert (done.returncode, done.stderr) == (0, "")


def test_other_errors_of_a_daemon_thread_are_told() -> None:
    done = run_to_its_end(f"""
    try:
        {WAYS["invoke"]}
    except Exception:
        raise ValueError("of the program")
""")
    assert done.returncode == 0
    assert "ValueError: of the program" in done.stderr

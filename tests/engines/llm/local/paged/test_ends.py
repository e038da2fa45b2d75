"""A process that runs a model on paged attention ends as a plain program does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fake_runner
import pytest

pytest.importorskip("openvino")
pytestmark = pytest.mark.processes

PATIENCE_S = 50.0
#: Asks for ever, in its main thread or in one that no exit waits for.
PROGRAM = """
import signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
from fake_runner import tokenizer
from tiny_chat import model
from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engines import LocalLLM
from rag_accel.engines.llm.local.paged import runner

(place,) = sys.argv[1:]
graph = RAGraph().add_generation("answer", "{input}", max_tokens=400)
graph.add_edge(START, "answer").add_edge("answer", END)
accelerator = Accelerator(llm=LocalLLM(model(), tokenizer(), runner="paged", pool_bytes=1 << 24))
run, runs = runner.PagedForm.run, threading.Event()

def said(form, inputs):
    if not runs.is_set():
        print("runs", flush=True)
        runs.set()
    return run(form, inputs)

def ask():
    while True:
        accelerator.run(graph, input="How high is it?")

runner.PagedForm.run = said
if place == "main":
    ask()
threading.Thread(target=ask, daemon=True).start()
assert runs.wait(60)
"""
#: what a terminal sends, and what a supervisor does
SIGNALS = {"Ctrl-C": signal.SIGINT, "SIGTERM": signal.SIGTERM}


@contextmanager
def started(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    paths = os.pathsep.join([str(Path(fake_runner.__file__).parent), *filter(None, sys.path)])
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def require_plain_end(process: subprocess.Popen[str], how: signal.Signals) -> None:
    """Check the status of a process that a signal ended, and what it wrote."""
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -how, said
    last = said.strip().splitlines()[-1:]
    assert last == (["KeyboardInterrupt"] if how is signal.SIGINT else [])


@pytest.mark.parametrize("how", SIGNALS.values(), ids=SIGNALS)
def test_a_signal_during_a_forward_ends_the_process(how: signal.Signals) -> None:
    with started(PROGRAM, "main") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        os.killpg(process.pid, how)
        require_plain_end(process, how)


def test_an_interpreter_ends_during_a_forward() -> None:
    with started(PROGRAM, "thread") as process:
        said = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, *said) == (0, "runs\n", "")

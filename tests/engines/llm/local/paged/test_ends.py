"""A process that traces or runs a model on paged attention ends as a plain program does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fake_runner
import pytest

pytest.importorskip("openvino")
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc"),
]

PATIENCE_S = 50.0
#: Asks for ever, in its main thread or in one that no exit waits for.
PROGRAM = """
import signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
from fake_runner import tokenizer
from tiny_chat import model
from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engines import LocalLLM
from rag_accel.engines.llm.local.paged import runner, trace_program

place, program = sys.argv[1:]
if program:
    trace_program.__file__ = program
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
ENDLESS = """
import os, pathlib, time

def convert(folder, spec):
    pathlib.Path({begun!r}).write_text(str(os.getpid()))
    time.sleep(600)
"""
#: what a terminal sends, and what a supervisor does
SIGNALS = {"Ctrl-C": signal.SIGINT, "SIGTERM": signal.SIGTERM}


@contextmanager
def started(place: str, program: str = "", **environment: str) -> Iterator[subprocess.Popen[str]]:
    paths = os.pathsep.join([str(Path(fake_runner.__file__).parent), *filter(None, sys.path)])
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, place, program],
        env={**os.environ, "PYTHONPATH": paths, **environment},
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


def wait_for(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Tell whether a process runs; one that has ended may wait for its parent."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.mark.parametrize("how", SIGNALS.values(), ids=SIGNALS)
def test_a_signal_while_a_model_is_traced_leaves_no_child_and_no_trace(
    how: signal.Signals, tmp_path: Path
) -> None:
    begun, program = tmp_path / "begun", tmp_path / "program.py"
    program.write_text(ENDLESS.format(begun=str(begun)))
    temporary, cache = tmp_path / "temporary", tmp_path / "cache"
    temporary.mkdir()
    folders = {"TMPDIR": str(temporary), "XDG_CACHE_HOME": str(cache)}
    with started("main", str(program), **folders) as process:
        wait_for(lambda: begun.exists() and begun.read_text())
        child = int(begun.read_text())
        os.killpg(process.pid, how)
        require_plain_end(process, how)
        wait_for(lambda: not runs(child))
    wait_for(lambda: not list(temporary.glob("rag-accel-compile-*")))
    names = [path.name for path in (cache / "rag_accel" / "paged").iterdir()]
    assert [name for name in names if not name.startswith(".")] == []


@pytest.mark.parametrize("how", SIGNALS.values(), ids=SIGNALS)
def test_a_signal_during_a_forward_ends_the_process(how: signal.Signals) -> None:
    with started("main") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        os.killpg(process.pid, how)
        require_plain_end(process, how)


def test_an_interpreter_ends_during_a_forward() -> None:
    with started("thread") as process:
        said = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, *said) == (0, "runs\n", "")

"""A process that traces or runs a model on paged attention ends as a plain program does."""

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
from ends_kit import PATIENCE_S, runs, wait_for

pytest.importorskip("openvino")
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc"),
]

#: Asks for ever, in its main thread or in one that no exit waits for.
PROGRAM = """
import signal, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
from fake_runner import tokenizer
from tiny_chat import model
from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engines import LocalLLM
from rag_accel.engines.llm.local.paged import runner, tracing

place, program = sys.argv[1:]
if program:
    tracing.__file__ = program
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
#: Has a model traced in the background, and ends.
TRACING = """
import sys, time, pathlib
from tiny_chat import model
from rag_accel.engines.llm.local.paged import making, topology, tracing

program, begun = sys.argv[1:]
tracing.__file__ = program
topology.trace_in_background(making.trace_spec(model()))
while not (pathlib.Path(begun).exists() and pathlib.Path(begun).read_text()):
    time.sleep(0.01)
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
def started(code: str, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    paths = os.pathsep.join([str(Path(fake_runner.__file__).parent), *filter(None, sys.path)])
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
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


class Tracing:
    """A trace that never ends by itself, with folders of its own.

    Args:
        folder: holds all of it.
    """

    def __init__(self, folder: Path) -> None:
        self.program, self.begun = folder / "program.py", folder / "begun"
        self.program.write_text(ENDLESS.format(begun=str(self.begun)))
        self._temporary, self._cache = folder / "temporary", folder / "cache"
        self._temporary.mkdir()
        self.folders = {"TMPDIR": str(self._temporary), "XDG_CACHE_HOME": str(self._cache)}

    def wait(self) -> None:
        """Wait until the child runs."""
        wait_for(lambda: self.begun.exists() and self.begun.read_text())

    def require_gone(self) -> None:
        """Check that neither the child nor a file of it is there, and no trace."""
        child = int(self.begun.read_text())
        wait_for(lambda: not runs(child))
        wait_for(lambda: not list(self._temporary.glob("rag-accel-compile-*")))
        names = [path.name for path in (self._cache / "rag_accel" / "traces").iterdir()]
        assert [name for name in names if not name.startswith(".")] == []


@pytest.fixture
def tracing(tmp_path: Path) -> Tracing:
    return Tracing(tmp_path)


@pytest.mark.parametrize("how", SIGNALS.values(), ids=SIGNALS)
def test_a_signal_while_a_model_is_traced_leaves_no_child_and_no_trace(
    how: signal.Signals, tracing: Tracing
) -> None:
    with started(PROGRAM, "main", str(tracing.program), **tracing.folders) as process:
        tracing.wait()
        os.killpg(process.pid, how)
        require_plain_end(process, how)
        tracing.require_gone()


def test_an_interpreter_that_ends_while_a_model_is_traced_leaves_no_child_and_no_trace(
    tracing: Tracing,
) -> None:
    arguments = (str(tracing.program), str(tracing.begun))
    with started(TRACING, *arguments, **tracing.folders) as process:
        said = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, *said) == (0, "", "")
        tracing.require_gone()


@pytest.mark.parametrize("how", SIGNALS.values(), ids=SIGNALS)
def test_a_signal_during_a_forward_ends_the_process(how: signal.Signals) -> None:
    with started(PROGRAM, "main", "") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        os.killpg(process.pid, how)
        require_plain_end(process, how)


def test_an_interpreter_ends_during_a_forward() -> None:
    with started(PROGRAM, "thread", "") as process:
        said = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, *said) == (0, "runs\n", "")

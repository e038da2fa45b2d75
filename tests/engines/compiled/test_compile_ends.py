"""Whatever ends a compilation, no process and no file of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ends_kit import PATIENCE_S, runs, wait_for

#: Compiles with a program that never ends; the first word says in which thread.
PROGRAM = """
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from rag_accel.engines.compiled import compile_process
from rag_accel.engines.compiled.compiled_forms import BackgroundTask

def compile_it():
    try:
        with compile_process.private_folder() as folder:
            compile_process.convert(sys.argv[2], folder, {}, 0)
    except compile_process.CompileError:
        pass

if sys.argv[1] == "background":
    BackgroundTask(compile_it).start()
    while True:
        time.sleep(0.01)
compile_it()
"""
#: The program: says which process it is in.
ENDLESS = """
import os, pathlib, time

def convert(folder, spec):
    pathlib.Path({begun!r}).write_text(str(os.getpid()))
    time.sleep(600)
"""


class Compiling:
    """A process that compiles, and its child that never ends by itself."""

    def __init__(self, folder: Path, thread: str) -> None:
        self.temporary = folder / "temporary"
        program = folder / "program.py"
        begun = folder / "begun"
        self.temporary.mkdir()
        program.write_text(ENDLESS.format(begun=str(begun)))
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, thread, str(program)],
            env={**os.environ, "TMPDIR": str(self.temporary)},
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        wait_for(lambda: begun.exists() and begun.read_text())
        self.child = int(begun.read_text())

    def end(self) -> bytes:
        """Wait for the process and return what it wrote."""
        _, said = self.process.communicate(timeout=PATIENCE_S)
        return said


@pytest.fixture(params=["background", "foreground"])
def compiling(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Compiling]:
    """Return a process that compiles in a thread of its own, or in its main one."""
    if not Path("/proc/self/stat").exists():
        pytest.skip("needs /proc")
    made = Compiling(tmp_path, request.param)
    yield made
    for pid in (made.child, made.process.pid):
        if runs(pid):
            os.kill(pid, signal.SIGKILL)
    made.process.wait()


def test_a_killed_process_leaves_no_child_and_no_file(compiling: Compiling) -> None:
    assert runs(compiling.child)
    assert list(compiling.temporary.iterdir())
    compiling.process.kill()
    compiling.end()
    wait_for(lambda: not runs(compiling.child))
    assert list(compiling.temporary.iterdir()) == []


def test_an_interrupt_while_it_compiles_leaves_no_child_and_no_file(compiling: Compiling) -> None:
    os.killpg(compiling.process.pid, signal.SIGINT)  # as a terminal does
    said = compiling.end()
    assert compiling.process.returncode == -signal.SIGINT
    assert said.decode().strip().splitlines()[-1] == "KeyboardInterrupt"
    assert not runs(compiling.child)
    assert list(compiling.temporary.iterdir()) == []


#: Writes weights and never ends with it.
WRITING = """
import pathlib, time
from rag_accel.engines.compiled import compile_process

with compile_process.private_folder() as folder:
    def write():
        (folder / "weights.safetensors").write_bytes(bytes(1000))
        time.sleep(600)
    compile_process.convert("never run", folder, {}, 0, write)
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_killed_while_it_writes_weights_leaves_none(
    tmp_path: Path, how: signal.Signals
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITING], env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    try:
        wait_for(lambda: list(tmp_path.glob("*/weights.safetensors")))
    finally:
        process.send_signal(how)
        process.wait(PATIENCE_S)
    wait_for(lambda: list(tmp_path.glob("rag-accel-compile-*")) == [])

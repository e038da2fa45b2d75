"""The child process that converts a model: isolated, bounded, and ended with its parent.

Tracing in this process would show in it: torch keeps one map of traced values for all threads, so
that two traces at once fail, and keeps what was traced for ever.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from rag_accel.engines.compiled import child_program
from rag_accel.engines.compiled.child_program import FAILED, OUT_OF_MEMORY, REFUSED, SPEC
from rag_accel.system.forks import at_fork

#: Longest time of one child, in seconds, unless its caller allows another: the imports alone take
#: some of them on busy cores.
LIMIT_S = 300.0
#: Seconds between two checks that its result is still wanted.
_LOOK_S = 0.25
#: Memory of a child besides its libraries: copies of the weights, and the trace.
_WEIGHT_COPIES, _LEAST_BYTES = 8, 2**31
_TRIES = 2
#: Signals that a process gets for what it does itself.
_CRASHES = {
    getattr(signal, name, None) for name in ("SIGSEGV", "SIGILL", "SIGABRT", "SIGBUS", "SIGFPE")
}
#: How files and libraries say that a disk is full.
_NO_SPACE = "No space left"
_LIBRARIES = ("torch", "transformers", "sentence_transformers", "safetensors", "openvino", "numpy")
_FRAME = child_program.__file__
_OURS = ("PATH", "HOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TEMP", "TMPDIR")


class CompileError(Exception):
    """A failed conversion of a model; the message says why."""


class ProgramFailedError(CompileError):
    """A program that crashed or refused what it was given, as it would again."""


class _Children:
    """The running children of this process, and whether it may have more of them."""

    def __init__(self) -> None:
        self.running: set[subprocess.Popen[bytes]] = set()
        self.is_ending = False
        self.lock = threading.Lock()
        #: held while a model is compiled: each takes some hundred MiB, so they queue
        self.turn = threading.RLock()


_children = _Children()


def end_all() -> None:
    """Kill the children of this process, and let none be started any more."""
    with _children.lock:
        _children.is_ending = True
        for child in _children.running:
            child.kill()


#: Tells whether anybody still waits for what is compiled in this context.
_is_wanted: ContextVar[Callable[[], bool]] = ContextVar(
    "rag_accel_is_compiled_form_wanted", default=lambda: True
)


@contextmanager
def turn_of(is_wanted: Callable[[], bool]) -> Iterator[None]:
    """Wait for the turn to compile; who waits here must not hold the model.

    Args:
        is_wanted: tells whether anybody waits for the compiled form; its child is killed once
            nobody does.

    Raises:
        CompileError: when its turn has come, if nobody does or this process is ending.
    """
    with _children.turn:
        token = _is_wanted.set(is_wanted)
        try:
            require_time()
            yield
        finally:
            _is_wanted.reset(token)


def require_time() -> None:
    """Stop here if this process is ending, or nobody waits for the compiled form.

    Raises:
        CompileError: if so.
    """
    if _children.is_ending:
        raise CompileError("this process is ending")
    if not _is_wanted.get()():
        raise CompileError("nobody uses it any more")


def _forget() -> None:
    """Forget, in a forked process, the children of its parent."""
    global _children
    _children = _Children()


at_fork(after_in_child=_forget)


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a folder that only this user can read, and remove it whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix="rag-accel-compile-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def convert(
    program: str,
    folder: Path,
    spec: Mapping[str, Any],
    weights_bytes: int,
    write: Callable[[], object] = lambda: None,
    *,
    limit_s: float = LIMIT_S,
) -> None:
    """Have a child convert the weights in a folder; another one if the first dies by chance.

    Args:
        program: path of the file whose ``convert(folder, spec)`` the child calls; see
            ``child_program``.
        folder: holds the weights and the graph.
        spec: the child's description of the network.
        weights_bytes: size of the weights.
        write: writes the weights. Called when there is a child, which removes the folder if this
            process is killed.
        limit_s: longest time of one child, in seconds.

    Raises:
        ProgramFailedError: if it crashed or refused.
        CompileError: if the program did not end well for another reason.
    """
    if not has_interpreter():
        raise CompileError("there is no Python interpreter to compile it in")
    told = {
        **spec,
        "parent": os.getpid(),
        "path": _library_path(),
        "memory_bytes": _WEIGHT_COPIES * weights_bytes + _LEAST_BYTES,
    }

    def fill() -> None:
        if not (folder / SPEC).exists():
            write()
            (folder / SPEC).write_text(json.dumps(told))

    status = 0
    with _children.turn:
        for _ in range(_TRIES):
            status = _run(program, folder, fill, limit_s)
            if status == 0:
                return
            if status == REFUSED:
                raise _refusal(folder)
            if 0 < status != OUT_OF_MEMORY:
                break
    if status == OUT_OF_MEMORY:
        raise CompileError("the process that compiles it had too little memory")
    how = f"signal {-status}" if status < 0 else f"status {status}: {_last_words(folder)}"
    kind = ProgramFailedError if -status in _CRASHES else CompileError
    raise kind(f"the process that compiles it ended with {how}")


def _run(program: str, folder: Path, fill: Callable[[], None], limit_s: float) -> int:
    with (folder / "stderr").open("wb") as said:
        with _children.lock:
            require_time()
            # -I and -S: no file of the working directory, no PYTHON*, nothing of `site`.
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", _FRAME, program, str(folder), str(os.getpid())],
                stdin=subprocess.PIPE,  # a byte starts it, its end means ours
                stdout=subprocess.DEVNULL,
                stderr=said,
                cwd=folder,
                env=_environment(),
                start_new_session=True,  # Ctrl-C in the terminal is not meant for it
            )
            _children.running.add(child)
        try:
            fill()
            assert child.stdin is not None, "a child is told to begin by its input"
            with suppress(BrokenPipeError):  # it has ended: its status says why
                os.write(child.stdin.fileno(), b"\n")
            return _status(child, limit_s)
        finally:
            with _children.lock:
                _children.running.discard(child)
            child.kill()
            child.wait()
            if child.stdin is not None:
                child.stdin.close()
            require_time()


def _status(child: subprocess.Popen[bytes], limit_s: float) -> int:
    """Wait for a child as long as its result is wanted, and return its status."""
    end = time.monotonic() + limit_s
    while (left_s := end - time.monotonic()) > 0:
        with suppress(subprocess.TimeoutExpired):
            return child.wait(min(left_s, _LOOK_S))
        require_time()
    raise CompileError(f"its compilation took longer than {limit_s:.0f} s")


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _OURS if name in os.environ}
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return {**kept, **offline, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def has_interpreter() -> bool:
    """Tell whether another process can run Python: a frozen program would start itself again."""
    name = Path(sys.executable or "").name.lower()
    return not getattr(sys, "frozen", False) and name.startswith(("python", "pypy"))


def _library_path() -> list[str]:
    """Return the folders of the libraries and of other packages, in the order of ``sys.path``."""
    roots: set[str] = set()
    for name in _LIBRARIES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            roots.add(str(Path(spec.origin).resolve().parent.parent))
    entries = [os.path.abspath(entry) for entry in sys.path]
    kept = [
        entry
        for entry in entries
        if os.path.basename(entry) in ("site-packages", "dist-packages")
        or os.path.realpath(entry) in roots
    ]
    return kept + sorted(roots - set(map(os.path.realpath, kept)))


def _refusal(folder: Path) -> CompileError:
    with suppress(OSError):
        said = (folder / FAILED).read_text()
        return CompileError(said) if _NO_SPACE in said else ProgramFailedError(said)
    return CompileError("the process that compiles it lost this one")


def _last_words(folder: Path) -> str:
    with suppress(OSError):
        lines = (folder / "stderr").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
    return ""

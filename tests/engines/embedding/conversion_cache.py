"""Graphs that were converted once in this process of tests, for all tests of the same weights.

A conversion imports torch in a child, which takes seconds; tests convert the same two models over
and over. What a child makes follows from what it is told and from the weights alone. Whatever was
not converted before is converted by a process that imports once and forks for each conversion.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from rag_accel.engines.compiled import child_program, compile_process
from rag_accel.engines.compiled.child_program import GRAPH
from rag_accel.engines.compiled.compile_process import convert
from rag_accel.engines.embedding import traced_network
from rag_accel.engines.embedding.traced_network import NETWORK

_PROGRAM = str(Path(__file__).with_name("conversion_server.py"))
_kept: dict[str, Path] = {}
#: the running servers, by the process whose they are: a forked one cannot talk to its parent's
_servers: dict[int, subprocess.Popen[bytes]] = {}


def use(monkeypatch: pytest.MonkeyPatch, into: Any) -> None:
    """Have a module that converts models take what was converted before."""
    monkeypatch.setattr(into, "convert", _from_cache(convert))
    if hasattr(os, "fork"):
        monkeypatch.setattr(compile_process, "_run", _by_server(compile_process._run))


def _from_cache(real: Callable[..., None]) -> Callable[..., None]:
    def cached(
        program: str,
        folder: Path,
        spec: Mapping[str, Any],
        weights_bytes: int,
        write: Callable[[], None] = lambda: None,
    ) -> None:
        write()
        told = json.dumps(spec, sort_keys=True, default=str).encode()
        key = sha256(told + sha256((folder / NETWORK).read_bytes()).digest()).hexdigest()
        if key not in _kept:
            real(program, folder, spec, weights_bytes)
            place = Path(tempfile.mkdtemp(prefix="rag-accel-tests-"))
            for path in folder.glob(f"{Path(GRAPH).stem}.*"):
                shutil.copy(path, place)
            _kept[key] = place
        for path in _kept[key].iterdir():
            shutil.copy(path, folder)

    return cached


Run = Callable[[str, Path, Callable[[], None], float], int]


def _by_server(real: Run) -> Run:
    def run(program: str, folder: Path, fill: Callable[[], None], limit_s: float) -> int:
        if program != traced_network.__file__:
            return real(program, folder, fill, limit_s)  # a test has another program
        fill()
        if os.getpid() not in _servers:
            _servers[os.getpid()] = _started()
        server = _servers[os.getpid()]
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(os.fsencode(folder) + b"\n")
        server.stdin.flush()
        return int(server.stdout.readline())

    return run


def _started() -> subprocess.Popen[bytes]:
    programs = [child_program.__file__, traced_network.__file__]
    arguments = [_PROGRAM, *programs, *compile_process._library_path()]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=compile_process._environment(),
        start_new_session=True,
    )


def forget() -> None:
    """Delete all that is kept, and end this process's server."""
    if server := _servers.pop(os.getpid(), None):
        server.kill()  # the end of its input would not do: a forked process may hold the pipe, too
        server.communicate()
    for place in _kept.values():
        shutil.rmtree(place, ignore_errors=True)
    _kept.clear()

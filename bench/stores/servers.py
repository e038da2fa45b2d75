"""A server of a vector store on this machine, with data of its own, ended with its block."""

from __future__ import annotations

import importlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rag_accel.errors import EngineError

START_S, STOP_S = 60.0, 10.0


@contextmanager
def chroma_server(folder: Path) -> Iterator[Any]:
    """Start a Chroma server whose data and log lie in ``folder``, and give a client of it.

    Raises:
        ImportError: if chromadb is not installed.
        EngineError: if the server ends instead, or does not answer in a minute.
    """
    chromadb: Any = importlib.import_module("chromadb")
    port = _free_port()
    command = [str(Path(sys.executable).with_name("chroma")), "run", "--path", str(folder)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with (folder / "chroma.log").open("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield _answering(chromadb, port, process, folder / "chroma.log")
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answering(chromadb: Any, port: int, process: subprocess.Popen[bytes], log: Path) -> Any:
    """Return a client once the server answers."""
    until = time.monotonic() + START_S
    settings = chromadb.config.Settings(anonymized_telemetry=False)
    while True:
        try:
            return chromadb.HttpClient("127.0.0.1", port, settings=settings)
        except Exception as error:  # of whichever client it uses
            if process.poll() is None and time.monotonic() < until:
                time.sleep(0.1)
                continue
            raise EngineError(
                "a Chroma server does not answer",
                where=f"127.0.0.1:{port}",
                found=log.read_text()[-500:] or error,
                valid=f"an answer within {START_S:.0f} s",
                hint="start `chroma run` by hand and read what it says",
            ) from error


def _free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]

"""Objects that answer as a test tells them to, and the application in front of them."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette

from rag_accel.accelerator import Accelerator
from rag_accel.clock import Clock
from rag_accel.serving.app import ServingApp
from rag_accel.serving.http_server import DrainingServer, open_socket
from rag_accel.serving.served import ServedAnswer, ServedPiece, ServedUsage
from rag_accel.serving.serving_options import ServingOptions
from rag_accel.serving.target import ServingTarget
from rag_accel.serving.tenants import ServedTenants
from rag_accel.serving.tokens import TokenFile

ROOT = Path(__file__).parents[2]
HANG_S = 30.0
SERVED = {
    "langchain": "langchain_rag_accel.served:serve_object",
    "llama-index": "llama_index_rag_accel.served:serve_object",
}


class ScriptedProgram:
    """A program that answers ``<its inputs>`` in words, or raises, or waits for ``gate``."""

    accelerator: Accelerator | None = None

    def __init__(
        self,
        inputs: tuple[str, ...] = ("input",),
        error: Exception | None = None,
        gate: asyncio.Event | None = None,
        fails_after: int | None = None,
    ) -> None:
        self.inputs = inputs
        self.error, self.gate, self.fails_after = error, gate, fails_after
        self.begun = asyncio.Event()
        self.num_begun = self.num_ended = self.num_cancelled = 0
        self.deadlines: list[float | None] = []

    @contextmanager
    def _call(self, deadline_s: float | None) -> Any:
        self.num_begun += 1
        self.deadlines.append(deadline_s)
        self.begun.set()
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            self.num_cancelled += 1
            raise
        finally:
            self.num_ended += 1

    async def answer(self, values: Mapping[str, Any], deadline_s: float | None) -> ServedAnswer:
        with self._call(deadline_s):
            if self.gate is not None:
                await self.gate.wait()
            if self.error is not None:
                raise self.error
            text = " ".join(map(str, values.values()))
            return ServedAnswer({"said": text}, f"<{text}>", ServedUsage(2, 3))

    async def stream(
        self, values: Mapping[str, Any], deadline_s: float | None
    ) -> AsyncIterator[ServedPiece]:
        with self._call(deadline_s):
            if self.error is not None and self.fails_after is None:
                raise self.error
            for number, word in enumerate(" ".join(map(str, values.values())).split()):
                if number == self.fails_after:
                    raise self.error or RuntimeError("secret of the program")
                yield ServedPiece(word)
                if self.gate is not None:
                    await self.gate.wait()
            yield ServedPiece(step={"done": True})
            yield ServedPiece(usage=ServedUsage(2, 3))

    stream_answer = stream


class ScriptedEmbedder:
    """An embedder whose vector of a text is its length and the role's."""

    accelerator: Accelerator | None = None

    async def embed(self, texts: Sequence[str], role: str) -> Any:
        return [[float(len(text)), float(len(role)), 0.1] for text in texts]


def serving_app(
    obj: Any,
    tokens: TokenFile | None = None,
    name: str = "bot",
    clock: Clock | None = None,
    **options: Any,
) -> ServingApp:
    """Return the application in front of an object."""
    tenants = ServedTenants(ServingTarget(name, obj))
    return ServingApp(tenants, ServingOptions(**options), tokens, clock)


def client_of(app: ServingApp | Starlette, **arguments: Any) -> httpx.AsyncClient:
    """Return a client that talks to an application without a network."""
    asgi: Any = app.asgi() if isinstance(app, ServingApp) else app
    transport = httpx.ASGITransport(asgi, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", **arguments)


class AsgiCall:
    """One request, driven by hand: its client may leave, and stop reading, when a test says so."""

    def __init__(
        self, asgi: Any, path: str, body: Any, headers: Sequence[Any] = (), method: str = "POST"
    ) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._received.put_nowait({"type": "http.request", "body": data, "more_body": False})
        self.sent: list[dict[str, Any]] = []
        self.sending = asyncio.Event()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "scheme": "http",
            "server": ("served", 80),
            "client": ("test", 1),
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                *headers,
            ],
        }
        self.task = asyncio.ensure_future(asgi(scope, self._received.get, self._send))

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        self.sending.set()

    def leave(self) -> None:
        """Have the client leave."""
        self._received.put_nowait({"type": "http.disconnect"})

    @property
    def status(self) -> int | None:
        """Return the status that was sent; None before."""
        return next((m["status"] for m in self.sent if "status" in m), None)

    @property
    def body(self) -> bytes:
        """Return what was sent so far."""
        return b"".join(message.get("body", b"") for message in self.sent)


async def until(is_so: Callable[[], bool], turns: int = 10_000) -> None:
    """Let other tasks run until something is so; fail if it never is."""
    for _ in range(turns):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to be")


@contextmanager
def served(program: Any, **options: Any) -> Iterator[tuple[str, int, DrainingServer]]:
    """Serve in a thread of this process; give the host, the port and the server."""
    bounds = ServingOptions(port=0, **options)
    opened = open_socket(bounds)
    host, port = opened.getsockname()
    is_up = threading.Event()
    server = DrainingServer(serving_app(program, **options), bounds, lambda url: is_up.set())
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
    thread.start()
    try:
        assert is_up.wait(HANG_S)
        yield host, port, server
    finally:
        server.should_exit = True
        thread.join(HANG_S)
        assert not thread.is_alive()


@contextmanager
def connected(program: Any, **options: Any) -> Iterator[socket.socket]:
    """Serve, and give a connection on which nothing was sent."""
    with (
        served(program, **options) as (host, port, _),
        socket.create_connection((host, port), HANG_S) as connection,
    ):
        yield connection


def is_closed(connection: socket.socket) -> bool:
    """Wait until the server has ended a connection; tell whether it did before the bound."""
    connection.settimeout(HANG_S)
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def request_head(path: str, length: int, *others: str) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {length}",
        *others,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


@contextmanager
def serving_process(folder: Path, *arguments: str) -> Any:
    """Run ``rag-accel serve`` on a free port in a folder; give the process and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rag_accel.cli", "serve", *arguments, "--port", "0"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*_metadata(folder), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if " on http://" not in line:
            raise AssertionError(line + process.communicate(timeout=30)[1])
        yield process, line.rpartition(" ")[2].strip()
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


def _metadata(folder: Path) -> list[str]:
    """Return a folder that registers the factories, where no installed distribution does."""
    if entry_points(group="rag_accel.served"):
        return []
    info = folder / "registered" / "served_factories-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: served-factories\n")
    lines = "".join(f"{name} = {value}\n" for name, value in SERVED.items())
    (info / "entry_points.txt").write_text(f"[rag_accel.served]\n{lines}")
    return [str(info.parent)]

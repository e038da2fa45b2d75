"""Members of a device group that fall silent and come back: real servers on a loopback port."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from rag_accel.engine_api import EngineRequest, PrimitiveKind, StepBudget, TextBatch, WorkId
from rag_accel.engines import CallableEmbeddingEngine, DeviceGroup, EngineMember, RemoteMember

SLO_S = 1.0
DOWN_S = 1.0
_DIMENSION = 8
_STEP_S = 0.5
_LIMIT_S = 60.0


def silent_over_slo(quick: bool = False) -> float:
    """Return the slowest query's seconds over the limit of 1 s: the preferred member falls silent.

    Args:
        quick: with few queries.
    """
    slowest = 0.0
    with _served() as server, _group(server) as group:
        _ask(group, "warm")
        server.is_silent = True
        for number in range(4 if quick else 40):
            began = time.monotonic()
            _require_vectors(_ask(group, f"query {number}"))
            slowest = max(slowest, time.monotonic() - began)
        server.is_silent = False
    return slowest / SLO_S


def back_s(quick: bool = False) -> float:
    """Return the seconds until a server that was down for 1 s is given a query again.

    Args:
        quick: once, else the slowest of three times.
    """
    return max(_back_s() for _ in range(1 if quick else 3))


def _back_s() -> float:
    with _served() as server, _group(server) as group:
        _ask(group, "warm")
        port = server.server_port
        server.end()
        down_since = time.monotonic()
        number = 0
        while time.monotonic() - down_since < DOWN_S:
            number += 1
            _require_vectors(_ask(group, f"down {number}"))
        with _served(port) as restarted:
            began = time.monotonic()
            while not restarted.is_given("back"):
                number += 1
                _require_vectors(_ask(group, f"back {number}"))
                if time.monotonic() - began > _LIMIT_S:
                    raise RuntimeError("a server that is back is not asked again")
            return time.monotonic() - began


class _Server(ThreadingHTTPServer):
    """``/v1/embeddings`` whose vectors depend on the text alone."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.is_silent = False
        self.given: list[str] = []
        self._is_ended = False
        self._connections: set[Any] = set()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def is_given(self, beginning: str) -> bool:
        """Tell whether a text that begins so was among those sent."""
        return any(text.startswith(beginning) for text in list(self.given))

    def process_request(self, request: Any, client_address: Any) -> None:
        """Note the connection, which ends with the server."""
        self._connections.add(request)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not print that a client has left."""

    def end(self) -> None:
        """Stop listening and drop the connections; idempotent."""
        if self._is_ended:
            return
        self._is_ended = True
        self.shutdown()
        self.server_close()
        self._thread.join()
        for connection in list(self._connections):
            self.shutdown_request(connection)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer a call, unless the server is silent."""
        server = cast(_Server, self.server)
        call = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server.given += call["input"]
        while server.is_silent:
            time.sleep(0.01)
        data = [{"index": at, "embedding": _vector(text)} for at, text in enumerate(call["input"])]
        body = json.dumps({"data": data, "model": call["model"]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def _vector(text: str) -> list[float]:
    return [byte / 256 + 0.01 for byte in hashlib.sha256(text.encode()).digest()[:_DIMENSION]]


@contextmanager
def _served(port: int = 0) -> Iterator[_Server]:
    server = _Server(port)
    try:
        yield server
    finally:
        server.is_silent = False
        server.end()


@contextmanager
def _group(server: _Server) -> Iterator[DeviceGroup]:
    engine = CallableEmbeddingEngine(lambda texts: [_vector(text) for text in texts], pure=True)
    remote = RemoteMember(f"http://127.0.0.1:{server.server_port}/v1", "model")
    group = DeviceGroup([remote, EngineMember(engine, "here")], slo_s=SLO_S)
    try:
        yield group
    finally:
        group.close()


def _ask(group: DeviceGroup, text: str) -> Any:
    work = EngineRequest(WorkId(text), text, PrimitiveKind.EMBEDDING, TextBatch((text,)))
    group.submit([work])
    end = time.monotonic() + _LIMIT_S
    while time.monotonic() < end:
        for output in group.step(StepBudget(_STEP_S)):
            if output.error is not None:
                raise output.error
            return output.value
    raise RuntimeError("a query does not end")


def _require_vectors(found: Any) -> None:
    if found.shape != (1, _DIMENSION):
        raise RuntimeError(f"vectors of shape {found.shape}")

"""Connections that do no work are ended in time, and stop nobody: half-open, slow and greedy."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving_kit import (
    HANG_S,
    ScriptedProgram,
    connected,
    is_closed,
    request_head,
    served,
)

from rag_accel.errors import ConfigError
from rag_accel.serving.connections import ConnectionWatch, Phase
from rag_accel.serving.http_server import open_socket
from rag_accel.serving.served import ServedPiece
from rag_accel.serving.serving_options import ServingOptions

#: longer than any test may take
NEVER_S = 600.0


class StandingConnection:
    """A connection in the phase that a test says."""

    def __init__(self, phase: Phase, number: int = 0) -> None:
        self.state: tuple[Phase, object] = (phase, None)
        self.number = number
        self.is_aborted = False

    def phase(self) -> tuple[Phase, object]:
        return self.state

    def abort(self) -> None:
        self.is_aborted = True


LIMITS: list[tuple[Phase, float | None]] = [
    ("head", 10.0),
    ("body", 30.0),
    ("unread", 20.0),
    ("closing", 20.0),
    ("answer", None),
]


@pytest.mark.parametrize(("phase", "limit_s"), LIMITS)
def test_each_phase_has_its_limit(phase: Phase, limit_s: float | None) -> None:
    watch = ConnectionWatch(ServingOptions(write_timeout_s=20.0))
    connection = StandingConnection(phase)
    watch.sweep([connection], 100.0)
    watch.sweep([connection], 100.0 + (limit_s or 1e6) - 0.1)
    assert not connection.is_aborted
    watch.sweep([connection], 100.0 + (limit_s or 1e9))
    assert connection.is_aborted == (limit_s is not None)


def test_progress_begins_the_time_again() -> None:
    watch = ConnectionWatch(ServingOptions())
    connection = StandingConnection("unread", 1000)
    for now in range(0, 100, 25):
        connection.state = ("unread", 1000 - now)
        watch.sweep([connection], float(now))
    assert not connection.is_aborted


def test_beyond_the_most_connections_the_oldest_without_a_request_goes() -> None:
    watch = ConnectionWatch(ServingOptions(max_connections=2))
    old, new, working = (
        StandingConnection("head", 1),
        StandingConnection("head", 2),
        StandingConnection("answer", 0),
    )
    assert watch.sweep([new, working, old], 0.0) == 1
    assert (old.is_aborted, new.is_aborted, working.is_aborted) == (True, False, False)


class Flood(ScriptedProgram):
    """A program that streams without an end until its stream is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = threading.Event()

    async def stream(
        self, values: Mapping[str, Any], deadline_s: float | None
    ) -> AsyncIterator[ServedPiece]:
        try:
            while True:
                yield ServedPiece("a" * 10_000)
                await asyncio.sleep(0)
        finally:
            self.closed.set()


def test_half_open_connections_stop_nobody() -> None:
    with ExitStack() as stack:
        host, port, _ = stack.enter_context(served(ScriptedProgram(), head_timeout_s=NEVER_S))
        for number in range(600):
            half = stack.enter_context(socket.create_connection((host, port), HANG_S))
            half.sendall(b"POST /invoke HTTP/1.1\r\nHost: x\r\n"[: number % 32])
        answer = httpx.post(f"http://{host}:{port}/invoke", json={"input": "hi"}, timeout=HANG_S)
    assert answer.status_code == 200


def test_more_connections_than_may_be_open_are_shed_and_requests_still_served() -> None:
    with ExitStack() as stack:
        options = {"head_timeout_s": NEVER_S, "max_connections": 20}
        host, port, _ = stack.enter_context(served(ScriptedProgram(), **options))
        halves = [
            stack.enter_context(socket.create_connection((host, port), HANG_S)) for _ in range(60)
        ]
        assert is_closed(halves[0])
        answer = httpx.post(f"http://{host}:{port}/invoke", json={"input": "hi"}, timeout=HANG_S)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "sent",
    [b"", b"POST /invoke HT", request_head("/invoke", 100), request_head("/invoke", 100) + b"{"],
    ids=["nothing", "half a head", "a head", "half a body"],
)
def test_a_request_that_is_never_whole_is_ended(sent: bytes) -> None:
    program = ScriptedProgram()
    with connected(program, head_timeout_s=0.3, body_timeout_s=0.3) as connection:
        connection.sendall(sent)
        assert is_closed(connection)
    assert program.num_begun == 0


def test_a_head_that_is_too_large_is_refused() -> None:
    with connected(ScriptedProgram()) as connection:
        connection.sendall(request_head("/invoke", 2, f"X-Large: {'a' * 40_000}")[:39_000])
        connection.settimeout(HANG_S)
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


def test_a_body_over_the_bound_is_refused_before_it_came() -> None:
    with connected(ScriptedProgram(), max_body_bytes=100) as connection:
        connection.sendall(request_head("/invoke", 10**9))
        connection.settimeout(HANG_S)
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def leave(connection: socket.socket) -> None:
    connection.recv(100)
    connection.close()


def keep_without_reading(connection: socket.socket) -> None:
    connection.recv(100)


@pytest.mark.parametrize("behave", [leave, keep_without_reading])
def test_a_stream_ends_with_its_reader(behave: Callable[[socket.socket], None]) -> None:
    flood = Flood()
    body = b'{"input": "a"}'
    with connected(flood, write_timeout_s=0.5) as connection:
        connection.sendall(request_head("/stream", len(body)) + body)
        behave(connection)
        assert flood.closed.wait(HANG_S)


def test_a_slow_reader_that_reads_on_is_served() -> None:
    body = b'{"input": "a b"}'
    with connected(ScriptedProgram(), write_timeout_s=0.5) as connection:
        connection.sendall(request_head("/stream", len(body), "Connection: close") + body)
        connection.settimeout(HANG_S)
        answer = b""
        while piece := connection.recv(1):
            answer += piece
    assert b"data: [DONE]" in answer


def test_answers_are_not_held_back_by_nagles_algorithm() -> None:
    with open_socket(ServingOptions(port=0)) as opened:
        assert opened.proto == socket.IPPROTO_TCP  # else asyncio leaves it on


def test_an_address_that_is_taken_is_an_error_that_names_it() -> None:
    with open_socket(ServingOptions(port=0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
            open_socket(ServingOptions(port=port))
    with pytest.raises(ConfigError, match="cannot listen"):
        open_socket(ServingOptions(host="no.such.host.invalid", token_file=Path("tokens")))


def takes_connections(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), HANG_S).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("path", ["/invoke", "/stream"])
def test_what_is_under_way_ends_before_the_server_does(path: str) -> None:
    gate = asyncio.Event()
    program = ScriptedProgram(gate=gate)
    answers: list[httpx.Response] = []
    with served(program) as (host, port, server):
        url = f"http://{host}:{port}{path}"
        asking = threading.Thread(
            target=lambda: answers.append(httpx.post(url, json={"input": "a"}, timeout=HANG_S))
        )
        asking.start()
        while program.num_begun == 0:
            httpx.get(f"http://{host}:{port}/healthz", timeout=HANG_S)
        server.handle_exit(15, None)
        while takes_connections(host, port):
            pass
        assert program.num_ended == 0
        server.loop.call_soon_threadsafe(gate.set)
        asking.join(HANG_S)
    assert [answer.status_code for answer in answers] == [200]
    assert answers[0].text.endswith("}" if path == "/invoke" else "[DONE]\n\n")


def test_what_outlasts_the_time_to_drain_is_told() -> None:
    program = ScriptedProgram(gate=asyncio.Event())
    answers: list[httpx.Response] = []
    with served(program, drain_s=0.0) as (host, port, server):
        url = f"http://{host}:{port}/invoke"
        asking = threading.Thread(
            target=lambda: answers.append(httpx.post(url, json={"input": "a"}, timeout=HANG_S))
        )
        asking.start()
        while program.num_begun == 0:
            httpx.get(f"http://{host}:{port}/healthz", timeout=HANG_S)
        server.handle_exit(15, None)
        asking.join(HANG_S)
    assert [answer.status_code for answer in answers] == [503]
    assert program.num_cancelled == 1

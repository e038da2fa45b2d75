"""Requests as bytes on a socket: bodies in chunks, broken, endless and ambiguous ones."""

from __future__ import annotations

import json
import socket

import pytest
from serving_kit import HANG_S, ScriptedProgram, connected, is_closed

HEAD = b"POST /invoke HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def answer_of(connection: socket.socket) -> tuple[int, bytes]:
    """Read until the server closes; return the first status and all that follows its head."""
    connection.settimeout(HANG_S)
    received = b""
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionResetError:  # what was sent beyond the answer was not read
        pass
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_body_in_chunks_of_any_size_is_one_body(size: int) -> None:
    body = b'{"input": "abcdefgh"}'
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    with connected(ScriptedProgram()) as connection:
        connection.sendall(CHUNKED)
        for part in parts:
            connection.sendall(chunk(part))
        connection.sendall(b"0\r\nX-Trailer: a\r\n\r\n")
        status, said = answer_of(connection)
    assert status == 200
    assert json.loads(said) == {"output": {"said": "abcdefgh"}}


def test_chunks_beyond_the_bound_are_refused_before_the_last_one() -> None:
    program = ScriptedProgram()
    with connected(program, max_body_bytes=100) as connection:
        connection.sendall(CHUNKED + chunk(b"a" * 60) + chunk(b"a" * 60))
        status, _ = answer_of(connection)  # no last chunk ever comes
    assert (status, program.num_begun) == (413, 0)


@pytest.mark.parametrize(
    "sent",
    [
        b"zz\r\nab\r\n0\r\n\r\n",
        b"-1\r\n",
        b"ffffffffffffffffffffffff\r\n",
        b"2\r\nabc\r\n0\r\n\r\n",
    ],
    ids=["no number", "negative", "too large a number", "longer than it says"],
)
def test_broken_chunks_end_the_connection_and_nothing_runs(sent: bytes) -> None:
    program = ScriptedProgram()
    with connected(program, body_timeout_s=1.0) as connection:
        connection.sendall(CHUNKED + sent)
        assert is_closed(connection)
    assert program.num_begun == 0


def test_chunks_that_never_end_are_ended() -> None:
    program = ScriptedProgram()
    with connected(program, body_timeout_s=0.3) as connection:
        connection.sendall(CHUNKED + chunk(b'{"input": '))
        assert is_closed(connection)
    assert program.num_begun == 0


#: would run if the server took it for a request of its own
SMUGGLED = HEAD + b"Content-Length: 14\r\n\r\n" + b'{"input": "a"}'
AMBIGUOUS = {
    "a length and chunks": (
        HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0\r\n\r\n" + SMUGGLED
    ),
    "two lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}" + SMUGGLED,
    "another coding": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + SMUGGLED,
    "two hosts": HEAD + b"Host: localhost\r\nContent-Length: 14\r\n\r\n" + b'{"input": "a"}',
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_an_ambiguous_request_runs_nothing(name: str) -> None:
    program = ScriptedProgram()
    with connected(program, head_timeout_s=1.0, body_timeout_s=1.0) as connection:
        connection.sendall(AMBIGUOUS[name])
        status, _ = answer_of(connection)
    assert 400 <= status < 500
    assert program.num_begun == 0


def test_a_get_of_ambiguous_length_hides_no_request_either() -> None:
    program = ScriptedProgram()
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n"
    with connected(program) as connection:
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED)
        status, _ = answer_of(connection)
    assert (status, program.num_begun) == (400, 0)

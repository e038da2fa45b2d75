"""The faults a loopback server can be told to answer with."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from rag_accel.engines.llm.emulated_faults import Fault
from rag_accel.engines.llm.emulated_server import EmulatedServer

PATH = "/chat/completions"


def body(**fields: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": "what is rag"}]
    return {"model": "m", "messages": turns, "max_tokens": 3, **fields}


def test_a_scripted_status_carries_retry_after_and_ends(
    client: httpx.Client, server: EmulatedServer
) -> None:
    server.script(Fault("status", status=429, retry_after="7", message="slow down"))
    response = client.post(PATH, json=body())
    assert (response.status_code, response.headers["retry-after"]) == (429, "7")
    assert response.json()["error"]["message"] == "slow down"
    assert client.post(PATH, json=body()).status_code == 200


def test_a_scripted_server_error_is_answered(client: httpx.Client, server: EmulatedServer) -> None:
    server.script(Fault("status", status=500))
    assert client.post(PATH, json=body()).status_code == 500


@pytest.mark.parametrize("stream", [False, True])
def test_a_scripted_drop_breaks_the_connection(
    client: httpx.Client, server: EmulatedServer, stream: bool
) -> None:
    server.script(Fault("drop"))
    with pytest.raises(httpx.TransportError):
        client.post(PATH, json=body(stream=stream))


@pytest.mark.parametrize("stream", [False, True])
def test_a_scripted_truncation_breaks_the_answer(
    client: httpx.Client, server: EmulatedServer, stream: bool
) -> None:
    server.script(Fault("truncate", after_deltas=1))
    with pytest.raises(httpx.RemoteProtocolError):
        client.post(PATH, json=body(stream=stream))


def test_a_scripted_malformed_answer_is_no_json(
    client: httpx.Client, server: EmulatedServer
) -> None:
    server.script(Fault("malformed"))
    with pytest.raises(json.JSONDecodeError):
        client.post(PATH, json=body()).json()


def test_a_scripted_malformed_stream_breaks_after_its_deltas(
    client: httpx.Client, server: EmulatedServer
) -> None:
    server.script(Fault("malformed", after_deltas=2))
    lines = client.post(PATH, json=body(stream=True)).text.strip().split("\n\n")
    assert len(lines) == 4
    with pytest.raises(json.JSONDecodeError):
        json.loads(lines[-1].removeprefix("data: "))


def test_a_stream_shorter_than_its_fault_is_broken_at_the_end(
    client: httpx.Client, server: EmulatedServer
) -> None:
    server.script(Fault("truncate", after_deltas=99))
    with pytest.raises(httpx.RemoteProtocolError):
        client.post(PATH, json=body(stream=True))


def test_a_scripted_slow_first_byte_outlasts_a_short_timeout(
    client: httpx.Client, server: EmulatedServer
) -> None:
    server.script(Fault("slow", delay_s=60.0))
    with pytest.raises(httpx.ReadTimeout):
        client.post(PATH, json=body(), timeout=0.05)


def test_a_scripted_slow_first_byte_is_followed_by_a_proper_answer(
    client: httpx.Client, server: EmulatedServer
) -> None:
    server.script(Fault("slow", delay_s=0.01))
    assert client.post(PATH, json=body()).status_code == 200

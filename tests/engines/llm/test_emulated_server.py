"""The loopback server: protocol, limits, and clients that leave."""

from __future__ import annotations

import gc
import json
import socket
import threading
from typing import Any

import httpx
import pytest
from llm_harness import ENDLESS, eventually

from rag_accel.engine_api import GenerationInput, Message
from rag_accel.engines.llm.emulated import EmulatedDevice
from rag_accel.engines.llm.emulated_server import EmulatedServer, ServerLimits
from rag_accel.errors import ClosedError

PATH = "/chat/completions"


def body(**fields: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": "what is rag"}]
    return {"model": "m", "messages": turns, "max_tokens": 3, **fields}


def events(text: str) -> list[Any]:
    data = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert data[-1] == "[DONE]"
    return [json.loads(item) for item in data[:-1]]


def send_raw(server: EmulatedServer, text: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", httpx.URL(server.base_url).port or 0)) as raw:
        raw.settimeout(5.0)
        raw.sendall(text)
        answer = b""
        while chunk := raw.recv(65536):
            answer += chunk
        return answer


def test_a_whole_answer_has_text_usage_and_finish_reason(
    client: httpx.Client, device: EmulatedDevice
) -> None:
    answer = client.post(PATH, json=body()).json()
    request = GenerationInput((Message("user", "what is rag"),), max_tokens=3)
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": device.generate(request).text}
    assert choice["finish_reason"] == "stop"
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    assert answer["object"] == "chat.completion"


def test_a_streamed_answer_joins_to_the_whole_one(client: httpx.Client) -> None:
    whole = client.post(PATH, json=body()).json()["choices"][0]["message"]["content"]
    response = client.post(PATH, json=body(stream=True))
    assert response.headers["content-type"] == "text/event-stream"
    chunks = events(response.text)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant"}
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == whole
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_stream_reports_usage_only_when_asked(client: httpx.Client) -> None:
    plain = events(client.post(PATH, json=body(stream=True)).text)
    asked = body(stream=True, stream_options={"include_usage": True})
    with_usage = events(client.post(PATH, json=asked).text)
    assert not any("usage" in chunk for chunk in plain)
    assert with_usage[-1]["choices"] == []
    assert with_usage[-1]["usage"]["completion_tokens"] == 3


def test_content_parts_stop_and_the_newer_limit_are_understood(client: httpx.Client) -> None:
    parts = [{"type": "text", "text": "what is "}, {"type": "text", "text": "rag"}]
    turns = [{"role": "user", "content": parts}]
    call = body(messages=turns, max_tokens=None, max_completion_tokens=2, stop="zzz")
    assert client.post(PATH, json=call).json()["usage"]["completion_tokens"] == 2


def test_the_models_are_listed(client: httpx.Client) -> None:
    answer = client.get("/models").json()
    assert [model["id"] for model in answer["data"]] == ["emulated"]


def test_one_connection_serves_many_requests(client: httpx.Client, server: EmulatedServer) -> None:
    for _ in range(3):
        assert client.post(PATH, json=body()).status_code == 200
    assert server.num_calls == 3


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "wizard"),
        ({"messages": [{"role": "user", "content": 3}]}, "content"),
        ({"messages": ["x"]}, "role"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop": [1]}, "stop"),
        ({"n": 2}, "n;"),
        ({"stream_options": 1}, "stream_options"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_request_is_answered_400_and_says_why(
    client: httpx.Client, fields: dict[str, Any], text: str, stream: bool
) -> None:
    response = client.post(PATH, json=body(stream=stream, **fields))
    assert response.status_code == 400
    assert text in response.json()["error"]["message"]


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe"])
def test_a_body_that_is_no_json_object_is_answered_400(
    client: httpx.Client, content: bytes
) -> None:
    assert client.post(PATH, content=content).status_code == 400


def test_unknown_paths_and_methods_are_refused(client: httpx.Client) -> None:
    assert client.get("/nothing").status_code == 404
    response = client.get(PATH)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


def test_a_wrong_key_is_answered_401(device: EmulatedDevice) -> None:
    with EmulatedServer(device, api_key="right") as server:
        url = f"{server.base_url}{PATH}"
        wrong = httpx.post(url, json=body(), headers={"authorization": "Bearer wrong"})
        right = httpx.post(url, json=body(), headers={"authorization": "Bearer right"})
    assert (wrong.status_code, right.status_code) == (401, 200)


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_respond_is_answered_500(stream: bool) -> None:
    def respond(messages: object) -> str:
        raise KeyError("mine")

    with EmulatedDevice("fast_fp8", respond=respond) as device, EmulatedServer(device) as server:
        response = httpx.post(f"{server.base_url}{PATH}", json=body(stream=stream))
    assert response.status_code == 500


def test_a_closed_device_is_answered_503(client: httpx.Client, device: EmulatedDevice) -> None:
    device.close()
    assert client.post(PATH, json=body()).status_code == 503


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_place(stream: bool) -> None:
    with EmulatedDevice(ENDLESS) as device, EmulatedServer(device) as server:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.base_url}{PATH}", json=body(stream=stream), timeout=0.1)
        eventually(lambda: device.stats().running == 0)


def test_closing_the_server_drops_waiting_clients_and_leaves_no_thread() -> None:
    before = threading.active_count()
    errors: list[Exception] = []
    with EmulatedDevice(ENDLESS) as device:
        server = EmulatedServer(device).start()

        def call(url: str = f"{server.base_url}{PATH}") -> None:
            try:
                httpx.post(url, json=body())
            except httpx.TransportError as exc:
                errors.append(exc)

        caller = threading.Thread(target=call)
        caller.start()
        eventually(lambda: device.stats().running == 1)
        server.close()
        server.close()
        caller.join(5.0)
        assert device.stats().running == 0
    assert len(errors) == 1
    assert threading.active_count() == before


def test_connections_made_just_before_closing_are_closed_too(device: EmulatedDevice) -> None:
    for _ in range(10):
        server = EmulatedServer(device).start()
        port = httpx.URL(server.base_url).port or 0
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        server.close()
        for client in clients:
            client.close()
    gc.collect()  # what was left open would warn now, and warnings are errors


def test_a_server_that_is_not_running_has_no_url(device: EmulatedDevice) -> None:
    with pytest.raises(ClosedError, match="not running"):
        _ = EmulatedServer(device).base_url


def test_a_port_in_use_is_an_error_and_leaves_no_thread(
    server: EmulatedServer, device: EmulatedDevice
) -> None:
    before = threading.active_count()
    with pytest.raises(OSError, match="in use"):
        EmulatedServer(device, port=httpx.URL(server.base_url).port or 0).start()
    assert threading.active_count() == before


def test_two_servers_may_share_one_device(device: EmulatedDevice) -> None:
    with EmulatedServer(device) as first, EmulatedServer(device) as second:
        texts = {
            httpx.post(f"{server.base_url}{PATH}", json=body()).json()["choices"][0]["message"][
                "content"
            ]
            for server in (first, second)
        }
    assert len(texts) == 1


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\n"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (HEAD + b"content-length: 101\r\n\r\n", b"413"),
        (HEAD + b"content-length: " + b"9" * 5000 + b"\r\n\r\n", b"411"),
        (HEAD + b"content-length: -1\r\n\r\n", b"411"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n", b"411"),
        (HEAD + b"x: " + b"y" * 70_000 + b"\r\n\r\n", b"431"),
    ],
)
def test_a_request_out_of_bounds_is_refused_and_the_connection_closed(
    device: EmulatedDevice, text: bytes, status: bytes
) -> None:
    with EmulatedServer(device, limits=ServerLimits(max_body_bytes=100)) as server:
        assert send_raw(server, text).startswith(b"HTTP/1.1 " + status)


def test_a_silent_connection_is_closed_after_the_idle_time(device: EmulatedDevice) -> None:
    with EmulatedServer(device, limits=ServerLimits(idle_s=0.02)) as server:
        assert send_raw(server, b"POST /v1/ch") == b""


def test_connections_beyond_the_bound_are_answered_503(device: EmulatedDevice) -> None:
    with EmulatedServer(device, limits=ServerLimits(max_connections=1)) as server:
        port = httpx.URL(server.base_url).port or 0
        with socket.create_connection(("127.0.0.1", port)):
            answer = send_raw(server, b"GET /v1/models HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 503")

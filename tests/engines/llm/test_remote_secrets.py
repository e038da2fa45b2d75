"""An API key reaches the server and nobody else."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import AsyncIterator, Callable

import httpx2
import pytest
from chat_server import ChatServer

from rag_accel.engine_api import (
    EngineOutput,
    EngineRequest,
    GenerationInput,
    Message,
    PrimitiveKind,
    StepBudget,
    WorkId,
)
from rag_accel.engines.http.errors import Secret
from rag_accel.engines.http.options import RemoteOptions
from rag_accel.engines.llm.remote.engine import OpenAICompatibleEngine
from rag_accel.errors import ConfigError

KEY = "sk-very-secret-0123456789"
URL = "http://server.test/v1"
ONCE = RemoteOptions(max_retries=0)

Respond = Callable[[httpx2.Request], httpx2.Response]


def run(engine: OpenAICompatibleEngine, stream: bool = False) -> EngineOutput:
    payload = GenerationInput((Message("user", "hi"),), max_tokens=2)
    request = EngineRequest(WorkId("a"), "r", PrimitiveKind.DECODING, payload, stream=stream)
    engine.submit([request])
    output = engine.step(StepBudget(time_s=10.0))[-1]
    engine.close()
    return output


def refuse(request: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(401, json={"error": f"wrong key {KEY}"})


def refuse_after_much_text(request: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(400, text="x" * 190 + KEY)


class BrokenOff(httpx2.AsyncByteStream):
    """Break within the key."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield f"wrong key {KEY[:-2]}".encode()
        raise httpx2.ReadError("lost")


def refuse_and_break_off(request: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(401, stream=BrokenOff())


def babble(request: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(200, text=f"data: you sent {request.headers['authorization']}\n\n")


def break_down(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ReadError(f"lost {request.headers['authorization']}", request=request)


def fail_oddly(request: httpx2.Request) -> httpx2.Response:
    raise ValueError(dict(request.headers.raw))


def shown(error: BaseException) -> str:
    """Return everything a crash reporter would see, local variables included."""
    report = traceback.TracebackException.from_exception(error, capture_locals=True)
    return "".join(report.format()) + repr(error) + repr(vars(error))


@pytest.mark.parametrize(
    "respond",
    [refuse, refuse_after_much_text, refuse_and_break_off, babble, break_down, fail_oddly],
)
@pytest.mark.parametrize("stream", [False, True])
def test_no_error_shows_the_key(respond: Respond, stream: bool) -> None:
    transport = httpx2.MockTransport(respond)
    engine = OpenAICompatibleEngine(URL, "m", api_key=KEY, transport=transport, options=ONCE)
    output = run(engine, stream)
    assert output.error is not None
    assert output.error.__cause__ is None
    assert output.error.__context__ is None
    text = shown(output.error)
    assert "server.test" in text
    assert KEY[:8] not in text


def test_a_refused_connection_does_not_show_the_key() -> None:
    engine = OpenAICompatibleEngine("http://127.0.0.1:9/v1", "m", api_key=KEY, options=ONCE)
    output = run(engine)
    assert output.error is not None
    assert KEY not in shown(output.error)


def test_the_key_is_sent_and_no_log_shows_it(
    server: ChatServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    output = run(OpenAICompatibleEngine(server.base_url, "m", api_key=KEY))
    assert output.kind == "final"
    assert server.headers["authorization"] == f"Bearer {KEY}"
    assert "chat/completions" in caplog.text
    assert KEY not in caplog.text


def test_nothing_is_sent_that_was_not_given(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("API_KEY", "ADMIN_KEY", "ORG_ID", "PROJECT_ID", "BASE_URL"):
        monkeypatch.setenv(f"OPENAI_{name}", f"http://{name}.test")
    assert run(OpenAICompatibleEngine(server.base_url, "m")).kind == "final"
    names = {name.lower() for name in server.headers}
    assert not names & {"authorization", "openai-organization", "openai-project"}


def test_no_repr_shows_the_key() -> None:
    engine = OpenAICompatibleEngine(URL, "m", api_key=KEY)
    shown_parts = [repr(engine), repr(vars(engine)), repr(vars(engine._client))]
    assert KEY not in "".join(shown_parts)
    assert URL in shown_parts[0]


def test_a_secret_hides_itself_and_cannot_be_pickled() -> None:
    secret = Secret(KEY)
    assert KEY not in f"{secret} {secret!r}"
    assert secret.redact(f"a {KEY} b") == "a *** b"
    assert secret.redact(f"{KEY} {KEY[:9]}") == "*** ***"
    assert secret.redact(f"a {KEY[:3]}") == f"a {KEY[:3]}"
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(secret)


@pytest.mark.parametrize("key", ["with blank", "line\nbreak", "umläut"])
def test_a_key_no_header_can_carry_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        OpenAICompatibleEngine(URL, "m", api_key=key)
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://user:sesame@server.test/v1", "credentials"),
        ("http://server.test/v1?key=sesame", "query"),
        ("http://server.test/v1#sesame", "fragment"),
        ("ftp://server.test/v1", "scheme"),
        ("http:///v1", "no host"),
        ("server.test/v1", "scheme"),
    ],
)
def test_a_base_url_that_would_leak_or_cannot_work_is_refused(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        OpenAICompatibleEngine(url, "m")
    assert "sesame" not in str(caught.value)

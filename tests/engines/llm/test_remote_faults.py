"""The HTTP engine when servers misbehave: what is retried, what is final, what it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from chat_server import UNANSWERED, ChatServer, Fault
from llm_harness import MakeEngine, Naps, error_of, finish, run, work

from rag_accel.engines.http.options import RemoteOptions
from rag_accel.engines.llm.remote.engine import OpenAICompatibleEngine


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "fault",
    [Fault("status", status=429), Fault("status", status=503), Fault("drop"), Fault("truncate")],
    ids=lambda fault: f"{fault.kind}-{fault.status}",
)
def test_a_passing_fault_is_mended_by_another_attempt(
    remote: OpenAICompatibleEngine, server: ChatServer, naps: Naps, fault: Fault, stream: bool
) -> None:
    server.script(fault)
    assert run(remote, work(stream=stream)).kind == "final"
    assert server.num_calls == 2
    assert len(naps.seconds) == 1


def test_retry_after_is_waited_for(
    remote: OpenAICompatibleEngine, server: ChatServer, naps: Naps
) -> None:
    server.script(Fault("status", status=429, retry_after="7"))
    run(remote, work())
    assert 7.0 <= naps.seconds[0] <= 7.5


@pytest.mark.parametrize("status", [429, 500])
def test_attempts_are_bounded(
    make_engine: MakeEngine, server: ChatServer, naps: Naps, status: int
) -> None:
    server.script(*[Fault("status", status=status, message="no luck")] * 9)
    options = RemoteOptions(max_retries=2)
    error = error_of(run(make_engine(server.base_url, options=options), work()))
    assert server.num_calls == 3
    assert len(naps.seconds) == 2
    assert error.status == status
    assert "no luck" in str(error)
    assert "attempt 3" in str(error)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["status", "drop", "truncate"])
def test_a_server_that_is_down_is_asked_little_more_often_than_there_are_calls(
    make_engine: MakeEngine, server: ChatServer, naps: Naps, kind: Any, stream: bool
) -> None:
    server.script(*[Fault(kind, status=503)] * 1000)
    remote = make_engine(server.base_url, options=RemoteOptions(retry_budget=10))
    ids = [f"w{number}" for number in range(100)]
    remote.submit([work(id, stream=stream) for id in ids])
    ends = [output for output in finish(remote, *ids) if output.kind != "partial"]
    assert {output.kind for output in ends} == {"error"}
    assert server.num_calls == 110
    assert len(naps.seconds) == 10


@pytest.mark.parametrize("stream", [False, True])
def test_every_answer_allows_a_further_attempt(
    make_engine: MakeEngine, server: ChatServer, naps: Naps, stream: bool
) -> None:
    remote = make_engine(server.base_url, options=RemoteOptions(retry_budget=1))
    for number in range(20):
        server.script(Fault("status", status=503))
        assert run(remote, work(f"w{number}", stream=stream)).kind == "final"
    assert len(naps.seconds) == 20


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["status", "drop", "truncate"])
def test_a_call_that_is_retried_elsewhere_is_made_once(
    remote: OpenAICompatibleEngine, server: ChatServer, kind: Any, stream: bool
) -> None:
    server.script(Fault(kind, status=503))
    assert run(remote, work(stream=stream, is_retried=True)).kind == "error"
    assert server.num_calls == 1
    assert run(remote, work("b", stream=stream, is_retried=True)).kind == "final"


def test_a_retry_after_beyond_the_bound_ends_the_work(
    remote: OpenAICompatibleEngine, server: ChatServer, naps: Naps
) -> None:
    server.script(Fault("status", status=429, retry_after="3600"))
    assert error_of(run(remote, work())).status == 429
    assert naps.seconds == []


def test_a_retry_after_that_is_no_time_is_not_waited_for_and_the_call_repeated(
    remote: OpenAICompatibleEngine, server: ChatServer, naps: Naps
) -> None:
    never = "Thu, 01 Jan 99999999999999999999 00:00:00 GMT"
    server.script(Fault("status", status=503, retry_after=never))
    assert run(remote, work()).kind == "final"
    assert naps.seconds[0] <= 0.5


@pytest.mark.parametrize(
    ("status", "hint"), [(400, "options"), (401, "api_key"), (404, "base_url"), (302, "base_url")]
)
def test_a_refusal_is_final_and_says_where_and_what_next(
    remote: OpenAICompatibleEngine, server: ChatServer, status: int, hint: str
) -> None:
    server.script(Fault("status", status=status, message="because"))
    error = error_of(run(remote, work()))
    assert server.num_calls == 1
    assert error.status == status
    assert error.where == f"{server.base_url}/chat/completions"
    assert "because" in str(error.found)
    assert hint in str(error.hint)


def test_nothing_is_repeated_after_the_first_streamed_token(
    remote: OpenAICompatibleEngine, server: ChatServer, naps: Naps
) -> None:
    server.script(Fault("truncate", after_deltas=2))
    remote.submit([work(stream=True)])
    outputs = finish(remote, "a")
    assert [output.kind for output in outputs] == ["partial", "partial", "error"]
    assert "broke before the answer was complete" in str(outputs[-1].error)
    assert server.num_calls == 1
    assert naps.seconds == []


def test_a_server_silent_for_too_long_is_a_named_error_and_not_asked_again(
    make_engine: MakeEngine, server: ChatServer
) -> None:
    server.script(UNANSWERED)
    engine = make_engine(server.base_url, options=RemoteOptions(read_timeout_s=0.05))
    error = error_of(run(engine, work()))
    assert "silent for too long" in str(error)
    assert "read_timeout_s" in str(error)
    assert server.num_calls == 1


def test_a_server_that_is_not_there_is_a_named_error(
    make_engine: MakeEngine, server: ChatServer, naps: Naps
) -> None:
    url = server.base_url
    server.close()
    error = error_of(run(make_engine(url), work()))
    assert "no connection to the server" in str(error)
    assert error.status is None
    assert len(naps.seconds) == 3


class Body(httpx2.AsyncByteStream):
    """Stream one event and the end mark; then end, or hang."""

    def __init__(self, *, hangs: bool) -> None:
        self.hangs = hangs
        self.is_read = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\n'
        yield b"data: [DONE]\n\n"
        if self.hangs:
            await asyncio.Event().wait()
        self.is_read = True


def test_a_stream_is_read_to_its_end_so_that_its_connection_is_used_again(
    make_engine: MakeEngine,
) -> None:
    body = Body(hangs=False)
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, stream=body))
    assert run(make_engine(transport=transport), work(stream=True)).value.text == "hi"
    assert body.is_read


def test_a_server_that_hangs_after_the_end_mark_does_not_hold_the_answer_back(
    make_engine: MakeEngine,
) -> None:
    body = Body(hangs=True)
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, stream=body))
    assert run(make_engine(transport=transport), work(stream=True)).value.text == "hi"


@pytest.mark.parametrize("kind", [ZeroDivisionError, asyncio.CancelledError, SystemExit])
def test_an_unforeseen_error_of_the_transport_is_an_error_of_its_work(
    make_engine: MakeEngine, kind: type[BaseException]
) -> None:
    async def respond(request: httpx2.Request) -> httpx2.Response:
        raise kind("surprise")

    engine = make_engine(transport=httpx2.MockTransport(respond))
    for id in ("first", "second"):
        assert f"{kind.__name__}: surprise" in str(error_of(run(engine, work(id))))

"""The HTTP engine against a loopback server: contract, streams, cancellation, closing."""

from __future__ import annotations

import asyncio
import sys
import threading
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from chat_server import UNANSWERED, ChatServer, answer_of
from llm_harness import MakeEngine, eventually, finish, run, work

from rag_accel.engine_api import (
    Engine,
    EngineRequest,
    GenerationInput,
    GenerationOutput,
    Handle,
    PrimitiveKind,
    TextBatch,
    WorkId,
)
from rag_accel.engines.http.options import RemoteOptions
from rag_accel.engines.llm.remote.engine import OpenAICompatibleEngine
from rag_accel.errors import ClosedError, ConfigError, EngineError
from rag_accel.testing.conformance import EngineContract

URL = "http://server.test/v1"


class TestContract(EngineContract):
    @pytest.fixture(autouse=True)
    def _serve(self, server: ChatServer) -> None:
        self.server = server

    def make_engine(self) -> Engine:
        return OpenAICompatibleEngine(self.server.base_url, "m")

    def make_request(self, number: int) -> EngineRequest:
        return work(f"w{number}", max_tokens=3 + number)

    def make_bad_request(self) -> EngineRequest:
        return replace(work("bad"), payload=TextBatch(("x",)))

    def make_waiting_request(self) -> EngineRequest:
        self.server.script(UNANSWERED)
        return work("waiting")


@pytest.mark.parametrize("stream", [False, True])
def test_text_and_counts_are_those_of_the_server(
    remote: OpenAICompatibleEngine, stream: bool
) -> None:
    found = run(remote, work(stream=stream, max_tokens=4)).value
    assert found == GenerationOutput(answer_of(4), 3, 4, "stop")


def test_computing_elsewhere_takes_no_threads_of_ours(remote: OpenAICompatibleEngine) -> None:
    profile = remote.profile
    assert profile.max_threads == 0
    assert profile.stepped
    assert profile.interruptible
    assert not profile.pure


def test_work_cancelled_after_it_was_answered_reports_nothing(make_engine: MakeEngine) -> None:
    num_calls, second_call = 0, threading.Event()

    async def respond(request: httpx2.Request) -> httpx2.Response:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 2:  # with one slot, the first answer has been reported by now
            second_call.set()
        return httpx2.Response(200, json={"choices": [{"message": {"content": "x"}}]})

    options = RemoteOptions(concurrency=1)
    engine = make_engine(transport=httpx2.MockTransport(respond), options=options)
    engine.submit([work("gone"), work("kept")])
    assert second_call.wait(5.0)
    engine.cancel([WorkId("gone")])
    assert [output.id for output in finish(engine, "kept")] == ["kept"]


def test_a_cancelled_id_may_be_used_for_other_work(
    remote: OpenAICompatibleEngine, server: ChatServer
) -> None:
    server.script(UNANSWERED)
    remote.submit([work(max_tokens=9)])
    eventually(lambda: server.num_calls == 1)
    remote.cancel([WorkId("a")])
    assert run(remote, work(max_tokens=2)).value.completion_tokens == 2


def test_no_more_requests_are_in_flight_than_allowed(make_engine: MakeEngine) -> None:
    running, most = 0, 0

    async def respond(request: httpx2.Request) -> httpx2.Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        return httpx2.Response(200, json={"choices": [{"message": {"content": "x"}}]})

    options = RemoteOptions(concurrency=3)
    engine = make_engine(transport=httpx2.MockTransport(respond), options=options)
    ids = [f"w{number}" for number in range(12)]
    engine.submit([work(id) for id in ids])
    assert {output.kind for output in finish(engine, *ids)} == {"final"}
    assert most == 3
    assert engine.profile.max_batch == 3


@pytest.mark.parametrize(
    ("bad", "kind", "text"),
    [
        (replace(work("bad"), kind=PrimitiveKind.PREFILLING), EngineError, "PREFILLING"),
        (replace(work("bad"), payload=TextBatch(("x",))), EngineError, "TextBatch"),
        (work("bad", handle=Handle("h")), EngineError, "servers keep none"),
        (
            replace(work("bad"), payload=GenerationInput((), options={"model": "x"})),
            ConfigError,
            "model",
        ),
    ],
)
def test_bad_work_ends_alone_with_a_named_error(
    remote: OpenAICompatibleEngine, bad: EngineRequest, kind: type[Exception], text: str
) -> None:
    remote.submit([work("good"), bad])
    outputs = {output.id: output for output in finish(remote, "good", "bad")}
    assert outputs[WorkId("good")].kind == "final"
    assert isinstance(outputs[WorkId("bad")].error, kind)
    assert text in str(outputs[WorkId("bad")].error)


def test_closing_drops_what_is_in_flight_and_leaves_no_thread(server: ChatServer) -> None:
    before = threading.active_count()
    engine = OpenAICompatibleEngine(server.base_url, "m")
    assert threading.active_count() == before
    server.script(UNANSWERED)
    engine.submit([work()])
    eventually(lambda: server.num_running == 1)
    engine.close()
    engine.close()
    assert threading.active_count() == before
    eventually(lambda: server.num_running == 0)


def test_a_closed_engine_refuses_work(remote: OpenAICompatibleEngine) -> None:
    remote.close()
    with pytest.raises(ClosedError):
        remote.submit([work()])


def test_a_missing_client_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    monkeypatch.delitem(sys.modules, "rag_accel.engines.http.bounded_client", raising=False)
    with pytest.raises(ImportError, match=r"rag-accel\[openai\]"):
        OpenAICompatibleEngine(URL, "m")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_retries", -1),
        ("concurrency", 0),
        ("read_timeout_s", 0.0),
        ("total_timeout_s", float("nan")),
        ("max_response_bytes", 0),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    fields: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=f"RemoteOptions.{name}"):
        RemoteOptions(**fields)

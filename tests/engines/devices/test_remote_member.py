"""A server as a member of a device group: what it is sent, and whatever may go wrong there."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx2
import numpy as np
import pytest
from embeddings_server import EmbeddingsServer, Refusal, vector_of
from fake_members import FakeMember

from rag_accel.engine_api import EngineRequest, PrimitiveKind, StepBudget, TextBatch, WorkId
from rag_accel.engines import RemoteMember, RemoteOptions
from rag_accel.engines.devices.group import DeviceGroup
from rag_accel.engines.devices.members import Member
from rag_accel.engines.http.bounded_client import BoundedHttpClient
from rag_accel.errors import (
    ConfigError,
    EngineError,
    EngineLostError,
    EngineOutputError,
    MemberPausedError,
    RemoteEngineError,
)
from rag_accel.telemetry.spans import sending_trace

KEY = "sk-very-secret-0123456789"
URL = "http://server.test/v1"


@contextmanager
def remote(base_url: str = URL, **more: Any) -> Iterator[RemoteMember]:
    member = RemoteMember(base_url, "some-model", **more)
    try:
        yield member
    finally:
        member.close()


@contextmanager
def served() -> Iterator[tuple[EmbeddingsServer, RemoteMember]]:
    with EmbeddingsServer() as server, remote(server.base_url, api_key=KEY) as member:
        yield server, member


def answering(answer: Callable[[list[str]], Any], status: int = 200, **headers: str) -> Any:
    """Return a transport that answers each call with what is made of its texts."""

    def respond(request: httpx2.Request) -> httpx2.Response:
        body = answer(json.loads(request.content)["input"])
        return httpx2.Response(status, content=json.dumps(body), headers=headers)

    return httpx2.MockTransport(respond)


def rows(*vectors: Any, **more: Any) -> Any:
    return {"data": [{"index": at, "embedding": one} for at, one in enumerate(vectors)], **more}


def server_vectors(texts: Any, role: str = "query") -> Any:
    return np.array([vector_of(text) for text in texts], dtype=np.float32)


def request(id: str, *texts: str) -> EngineRequest:
    return EngineRequest(WorkId(id), "r", PrimitiveKind.EMBEDDING, TextBatch(texts))


def outcomes(group: DeviceGroup, count: int) -> list[Any]:
    """Step until ``count`` works have ended; return their values or errors."""
    found: list[Any] = []
    for _ in range(1000):
        if len(found) == count:
            return found
        for output in group.step(StepBudget(10.0)):
            found.append(output.value if output.kind == "final" else output.error)
    raise AssertionError(f"only {found} ended")


def ended(group: DeviceGroup) -> Any:
    return outcomes(group, 1)[0]


def test_vectors_come_back_in_order_whatever_order_they_are_sent_in() -> None:
    texts = [f"text {number}" for number in range(7)]
    with served() as (server, member):
        assert isinstance(member, Member)
        server.indexes = lambda count: list(reversed(range(count)))
        found = member.embed(texts, "query", 0)
        np.testing.assert_array_equal(found, server_vectors(texts))
        assert (server.models, server.heard[0].key) == (["some-model"], KEY)


def test_a_server_that_sends_lists_is_understood() -> None:
    with remote(transport=answering(lambda texts: rows([1, 2.5], [3, 4]))) as member:
        np.testing.assert_array_equal(member.embed(["a", "b"], "query", 0), [[1, 2.5], [3, 4]])


def test_each_role_gets_its_prompt() -> None:
    with EmbeddingsServer() as server:
        prompts = {"query_prompt": "query: ", "document_prompt": "passage: "}
        with remote(server.base_url, **prompts) as member:
            member.embed(["x"], "query", 0)
            member.embed(["x"], "document", 0)
        assert server.calls == [["query: x"], ["passage: x"]]


# What goes wrong.


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (rows([1.0]), "wrong number of vectors"),
        (rows([1.0], [2.0], [3.0]), "wrong number of vectors"),
        ({"data": [{"index": 0, "embedding": [1.0]}] * 2}, "index of a vector is missing"),
        ({"data": [{"index": at, "embedding": [1.0]} for at in (1, 2)]}, "index of a vector"),
        ({"data": [{"index": "0", "embedding": [1.0]}] * 2}, "index of a vector"),
        ({"data": [{"embedding": [1.0]}] * 2}, "no list of embeddings"),
        ({"error": "x"}, "no list of embeddings"),
        ([], "no list of embeddings"),
        (rows([1.0], [1.0, 2.0]), "different dimensions"),
        (rows([1.0], [float("nan")]), "not finite"),
        (rows([1.0], [1e300]), "not finite"),
        (rows([1.0], "not base64!"), "no vector of numbers"),
        (rows([1.0], base64.b64encode(b"abc").decode()), "no vector of numbers"),
        (rows([1.0], []), "no vector of numbers"),
        (rows([1.0], None), "no vector of numbers"),
        (rows([1.0], [[1.0]]), "no vector of numbers"),
        (rows([1.0], ["word"]), "no vector of numbers"),
        (rows([1.0], [True]), "no vector of numbers"),
        (rows([1.0], ["1.0"]), "no vector of numbers"),
        (rows([1.0], [10**400]), "no vector of numbers"),
        (rows([1.0], [0.0]), "length of a vector is 0"),
        (rows([1.0], [3e38]), "no float32"),
        (rows([1.0], base64.b64encode(bytes(4)).decode()), "length of a vector is 0"),
    ],
)
def test_an_answer_that_cannot_be_right_is_named(body: Any, message: str) -> None:
    transport = answering(lambda texts: body)
    raised = pytest.raises(EngineOutputError, match=message)
    with remote(transport=transport) as member, raised as caught:
        member.embed(["a", "b"], "query", 0)
    assert caught.value.where == f"{URL}/embeddings"


@pytest.mark.parametrize("status", [400, 401, 500, 503])
def test_an_error_status_is_a_failed_step(status: int) -> None:
    with served() as (server, member):
        server.refusals.append(Refusal(status))
        with pytest.raises(RemoteEngineError, match=f"HTTP {status}") as caught:
            member.embed(["a"], "query", 0)
        assert not isinstance(caught.value, MemberPausedError)
        assert len(server.calls) == 1
        assert len(member.embed(["a"], "query", 0)) == 1


def test_a_server_that_is_down_is_an_error_that_says_so() -> None:
    with EmbeddingsServer() as server:
        base_url = server.base_url
    with remote(base_url) as member, pytest.raises(RemoteEngineError, match="no connection"):
        member.embed(["a"], "query", 0)


@pytest.mark.parametrize(
    ("limit", "message"),
    [({"read_timeout_s": 0.05}, "silent for too long"), ({"total_timeout_s": 0.05}, "longer than")],
)
def test_a_server_that_is_too_slow_is_an_error_that_says_so(limit: Any, message: str) -> None:
    options = RemoteOptions(max_retries=0, **limit)
    with EmbeddingsServer() as server:
        server.hangs = True
        raised = pytest.raises(RemoteEngineError, match=message)
        with remote(server.base_url, options=options) as member, raised:
            member.embed(["a"], "query", 0)
        server.hangs = False


@pytest.mark.parametrize(
    ("asked", "pauses"),
    [
        ("7", [7.0] * 2),
        (None, [0.5, 1.0, 2.0, 4.0, 8.0, 8.0]),
        ("9999", [120.0]),
        ("Fri, 01 Jan 2100 00:00:00 GMT", [120.0]),
        ("Fri, 01 Jan 1999 00:00:00 GMT", [0.5]),
        ("soon", [0.5]),
        ("-3", [0.5]),
        ("nan", [0.5]),
    ],
)
def test_too_many_requests_ask_for_a_pause(asked: str | None, pauses: list[float]) -> None:
    with served() as (server, member):
        for pause in pauses:
            server.refusals.append(Refusal(429, asked))
            with pytest.raises(MemberPausedError) as caught:
                member.embed(["a"], "query", 0)
            assert (caught.value.retry_after_s, caught.value.status) == (pause, 429)
        member.embed(["a"], "query", 0)
        server.refusals.append(Refusal(429))
        with pytest.raises(MemberPausedError) as caught:
            member.embed(["a"], "query", 0)
        assert caught.value.retry_after_s == 0.5


@pytest.mark.parametrize("status", [401, 429, 500])
def test_no_error_shows_the_key(status: int) -> None:
    transport = answering(lambda texts: {"error": f"wrong key {KEY}"}, status)
    raised = pytest.raises(RemoteEngineError)
    with remote(api_key=KEY, transport=transport) as member, raised as caught:
        assert KEY not in repr(member.__dict__)
        member.embed(["a"], "query", 0)
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert KEY not in "".join(traceback.format_exception(caught.value))


def test_a_bad_answer_does_not_show_the_key() -> None:
    transport = answering(lambda texts: {"your key": KEY})
    raised = pytest.raises(EngineOutputError)
    with remote(api_key=KEY, transport=transport) as member, raised as caught:
        member.embed(["a"], "query", 0)
    assert KEY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "given", [("ftp://x/v1", None), (URL, "two words"), (f"{URL}?key=1", None)]
)
def test_a_bad_address_or_key_is_refused(given: tuple[str, str | None]) -> None:
    with pytest.raises(ConfigError):
        RemoteMember(given[0], "some-model", api_key=given[1])


def test_close_ends_a_running_call_and_the_thread() -> None:
    before = set(threading.enumerate())
    with EmbeddingsServer() as server:
        serving = set(threading.enumerate())
        server.hangs = True
        member = RemoteMember(server.base_url, "some-model")
        errors: list[Exception] = []

        def embed() -> None:
            try:
                member.embed(["a"], "query", 0)
            except EngineError as error:
                errors.append(error)

        caller = threading.Thread(target=embed)
        caller.start()
        while not server.calls:
            threading.Event().wait(0.005)
        member.close()
        caller.join(10)
        server.hangs = False
        assert isinstance(errors[0], EngineLostError)
        assert set(threading.enumerate()) <= serving
    assert set(threading.enumerate()) <= before


# In a group.


def test_a_server_of_another_model_stays_out_and_its_thread_ends() -> None:
    before = set(threading.enumerate())
    transport = answering(lambda texts: rows(*[[float(len(text)), 1.0] for text in texts]))
    group = DeviceGroup([FakeMember("here"), RemoteMember(URL, "other", transport=transport)])
    try:
        assert "remote: stays out: wrong dimension: 2" in group.describe_parts()[1]
        # Others may start or end threads meanwhile.
        left = set(threading.enumerate()) - before
        assert [one.name for one in left if one.name.startswith("rag-accel")] == []
    finally:
        group.close()


HEADERS = {"traceparent": f"00-{1:032x}-{2:016x}-01"}


@pytest.mark.parametrize(
    ("others", "sent"), [(HEADERS, HEADERS["traceparent"]), (None, None)], ids=["one", "several"]
)
def test_a_call_for_one_trace_joins_it(others: Any, sent: str | None) -> None:
    seen: list[str | None] = []

    def respond(asked: httpx2.Request) -> httpx2.Response:
        seen.append(asked.headers.get("traceparent"))
        texts = json.loads(asked.content)["input"]
        return httpx2.Response(200, json=rows(*([1.0, 2.0] for _ in texts)))

    group = DeviceGroup([RemoteMember(URL, "m", transport=httpx2.MockTransport(respond))])
    asked = replace(request("a", "one"), trace=HEADERS), replace(request("b", "two"), trace=others)
    group.submit(asked)
    ended = 0
    while ended < 2:
        ended += len(group.step(StepBudget(1.0)))
    group.close()
    assert seen[-1] == sent


def test_a_tracers_header_stays() -> None:
    seen: list[str] = []

    def respond(asked: httpx2.Request) -> httpx2.Response:
        seen.append(asked.headers["traceparent"])
        return httpx2.Response(200)

    async def main() -> None:
        async with BoundedHttpClient(RemoteOptions(), httpx2.MockTransport(respond)) as client:
            with sending_trace(HEADERS):
                await client.get(URL, headers={"traceparent": "theirs"})
                await client.get(URL)

    asyncio.run(main())
    assert seen == ["theirs", HEADERS["traceparent"]]

"""The HTTP engine and servers of vLLM's: texts, priorities and admission, and no other server's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from llm_harness import MakeEngine, eventually, finish, run, work
from vllm_chat_server import VllmChatServer, chat_servers

from rag_accel.engine_api import ChunkSpan, EngineRequest, GenerationInput, Message, WorkId
from rag_accel.engines.llm.remote.server_load import ServerAdmission, ServerLoad, read_load
from rag_accel.engines.llm.remote.servers import SERVERS, ModelServer, ModelServers
from rag_accel.engines.llm.remote.vllm_server_options import VllmServerOptions, request_priority
from rag_accel.errors import ConfigError
from rag_accel.kv.reuse_request import read_reuse_request
from rag_accel.testing import ManualClock

TEXT = "The clock tower of Bern was built in the thirteenth century."
MESSAGES = (Message("system", "Answer."), Message("user", f"Context:\n{TEXT}\n\nWhat is old?"))
SPANS = (ChunkSpan(1, 9, 9 + len(TEXT)),)
MakeServer = Callable[..., VllmChatServer]


@pytest.fixture
def make_server() -> Iterator[MakeServer]:
    """Yield a maker of servers, which end with the test."""
    with chat_servers() as make:
        yield make


def with_texts(id: str = "a", **fields: Any) -> EngineRequest:
    payload = GenerationInput(MESSAGES, max_tokens=4, chunk_spans=SPANS)
    return replace(work(id), payload=payload, **fields)


def test_texts_go_along_and_the_answer_says_where_tokens_came_from(
    make_server: MakeServer, make_engine: MakeEngine
) -> None:
    server = make_server()
    engine = make_engine(server.base_url, vllm=VllmServerOptions(kv_reuse="full"))
    whole = run(engine, with_texts(namespace="tenant")).value
    streamed = run(engine, with_texts("b", stream=True)).value
    for body, namespace in zip(server.bodies, ("tenant", ""), strict=True):
        wanted = read_reuse_request(body["kv_transfer_params"])
        assert wanted is not None
        assert (wanted.texts, wanted.before) == ((TEXT,), "Context:\n")
        assert wanted.namespace == namespace
        assert body["cache_salt"] == wanted.salt()
    assert server.bodies[0]["cache_salt"] != server.bodies[1]["cache_salt"]  # tenants are apart
    assert (whole.use.from_chunks, whole.use.approximate, whole.use.recomputed) == (7, 9, 1)
    assert (whole.text, streamed.text) == ("an answer", "an answer")
    assert server.paths.count("/v1/models") == 1


@pytest.mark.parametrize(("owner", "status"), [("somebody", 200), ("vllm", 403), ("vllm", 302)])
def test_another_server_sees_no_unknown_field(
    make_server: MakeServer, make_engine: MakeEngine, owner: str, status: int
) -> None:
    server = make_server(owner)
    server.models_status = status
    options = VllmServerOptions(kv_reuse="full", priority=True, most_waiting=0)
    engine = make_engine(server.base_url, vllm=options)
    engine.submit([with_texts(str(number), deadline=5.0) for number in range(4)])
    finish(engine, *map(str, range(4)))
    plain = make_engine(server.base_url)
    run(plain, with_texts())
    assert all(body == server.bodies[-1] for body in server.bodies)
    assert server.paths.count("/v1/models") == 1
    assert "/metrics" not in server.paths


def test_default_options_ask_nothing(make_server: MakeServer, make_engine: MakeEngine) -> None:
    server = make_server()
    run(make_engine(server.base_url, vllm=VllmServerOptions()), with_texts())
    assert server.paths == ["/v1/chat/completions"]
    assert not {"priority", "kv_transfer_params", "cache_salt"} & server.bodies[0].keys()


def test_a_server_without_priorities_is_sent_none_again(
    make_server: MakeServer, make_engine: MakeEngine
) -> None:
    server = make_server()
    server.priority_status = 400
    engine = make_engine(server.base_url, vllm=VllmServerOptions(priority=True))
    for id in ("a", "b"):
        assert run(engine, replace(work(id), depth=3)).value.text == "an answer"
    assert ["priority" in body for body in server.bodies] == [True, False, False]


def test_priority_is_of_deadline_and_depth(
    make_server: MakeServer, make_engine: MakeEngine
) -> None:
    server = make_server()
    clock = ManualClock(100.0)
    engine = make_engine(server.base_url, vllm=VllmServerOptions(priority=True), clock=clock)
    run(engine, with_texts(depth=3, deadline=102.0))
    run(engine, with_texts(depth=3))
    own = with_texts()
    run(engine, replace(own, payload=replace(own.payload, options={"priority": 7})))
    sent = [body["priority"] for body in server.bodies]
    assert sent == [request_priority(3, 2.0), request_priority(3, None), 7]
    assert not any("kv_transfer_params" in body for body in server.bodies)


def test_priorities_put_little_time_first_then_depth() -> None:
    cases = [(1, -3.0), (9, 0.5), (1, 0.5), (1, 60.0), (1, 1e9), (70, None), (5, None), (0, None)]
    found = [request_priority(*case) for case in cases]
    assert found == sorted(found)
    assert len(set(found)) == len(found)
    assert found[-1] == 0


def test_fields_of_the_request_go_before(make_server: MakeServer, make_engine: MakeEngine) -> None:
    server = make_server()
    engine = make_engine(server.base_url, vllm=VllmServerOptions(kv_reuse="full"))
    request = with_texts()
    run(engine, replace(request, payload=replace(request.payload, options={"cache_salt": "x"})))
    assert server.bodies[0]["cache_salt"] == "x"
    assert "kv_transfer_params" not in server.bodies[0]


def test_a_cancelled_first_request_still_settles_its_server(
    make_server: MakeServer, make_engine: MakeEngine
) -> None:
    server = make_server()
    engine = make_engine(server.base_url, vllm=VllmServerOptions(kv_reuse="full"))
    engine.submit([with_texts()])
    engine.cancel([WorkId("a")])
    known = SERVERS.get(server.base_url)
    assert known is not None
    run(engine, with_texts("b"))
    eventually(lambda: known.is_known)
    assert server.paths.count("/v1/models") <= 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kv_reuse", "dependency"),
        ("recompute_ratio", 1.5),
        ("kv_recipe", "together"),
        ("most_waiting", -1),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    fields: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=f"VllmServerOptions.{name}"):
        VllmServerOptions(**fields)


def test_load_is_summed_over_engines() -> None:
    text = (
        "# TYPE vllm:num_requests_running gauge\n"
        'vllm:num_requests_running{engine="0"} 2.0\n'
        'vllm:num_requests_running{engine="1"} 1.0\n'
        'vllm:num_requests_waiting{engine="0"} 4.0\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.25\n'
        'vllm:kv_cache_usage_perc{engine="1"} 0.5\n'
    )
    assert read_load(text) == ServerLoad(3.0, 4.0, 0.5)
    assert read_load("process_cpu_seconds_total 1.0") is None


class _Metrics:
    """Texts of metrics, one a read, the last one for ever."""

    def __init__(self, *waiting: int | None) -> None:
        self.waiting, self.reads = list(waiting), 0

    async def __call__(self) -> str | None:
        self.reads += 1
        waiting = self.waiting.pop(0) if len(self.waiting) > 1 else self.waiting[0]
        if waiting is None:
            return None
        return f"vllm:num_requests_running 1.0\nvllm:num_requests_waiting {waiting}.0\n"


def _admit(metrics: _Metrics, most: int, count: int) -> list[float]:
    """Return the pauses until so many requests were admitted."""
    clock, pauses = ManualClock(), list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock.advance(seconds)

    async def admit() -> None:
        admission = ServerAdmission(metrics, most, clock, sleep)
        for _ in range(count):
            await admission.room()

    asyncio.run(admit())
    return pauses


def test_requests_wait_until_few_wait_in_the_server() -> None:
    metrics = _Metrics(3, 2, 0)
    assert len(_admit(metrics, 1, 2)) == 2
    assert metrics.reads == 3


def test_one_read_admits_only_as_many_as_have_room() -> None:
    metrics = _Metrics(0)
    pauses = _admit(metrics, 1, 4)  # two places a read
    assert len(pauses) == 1
    assert metrics.reads == 2


def test_unreadable_metrics_admit_everything() -> None:
    metrics = _Metrics(None)
    assert _admit(metrics, 0, 50) == []
    assert metrics.reads == 1


def test_engine_reads_metrics_where_asked(make_server: MakeServer, make_engine: MakeEngine) -> None:
    server = make_server()
    run(make_engine(server.base_url, vllm=VllmServerOptions(most_waiting=5)), with_texts())
    assert server.paths == ["/v1/models", "/metrics", "/v1/chat/completions"]


def test_known_providers_are_not_asked() -> None:
    for url in ("https://api.openai.com/v1", "https://x.openai.azure.com/openai", "http://[::1"):
        server = ModelServer(url)
        assert server.is_known
        assert not server.is_vllm
    assert not ModelServer("http://openai.com.example.org/v1").is_known


def test_models_without_shape_are_no_vllm() -> None:
    for models in (None, [], {"data": None}, {"data": [None, {"owned_by": "x"}]}, "vllm"):
        server = ModelServer("http://server.test/v1")
        server.note_models(models)
        assert server.is_known
        assert not server.is_vllm


def test_number_of_known_servers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rag_accel.engines.llm.remote.servers.MOST_SERVERS", 2)
    servers = ModelServers()
    found = [servers.get(f"http://server{number}.test/v1") for number in range(3)]
    assert found[2] is None
    assert servers.get("http://server0.test/v1/") is found[0]

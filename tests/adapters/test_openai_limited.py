"""Resources of the openai package at an endpoint with a limit."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from limited_server import LimitedServer, Rate, ScriptedAnswer

from rag_accel.adoption.served_models import ServerHooks
from rag_accel.engines.http.endpoints import Endpoint, EndpointGate, Endpoints
from rag_accel_adapters.libraries.openai_limited import (
    LimitedClient,
    endpoint_key,
    limited_resource,
)
from rag_accel_adapters.libraries.openai_served import TellingClient, telling_resource

#: bounds a hang; nothing is measured
PATIENCE_S = 30.0
RATE = Rate(150, 4)


@pytest.fixture
def gate() -> EndpointGate:
    return EndpointGate(endpoints=Endpoints())


@pytest.fixture
def server() -> Iterator[LimitedServer]:
    with LimitedServer() as made:
        yield made


def client_of(server: LimitedServer, **settings: Any) -> openai.OpenAI:
    return openai.OpenAI(**{"api_key": "k", "base_url": server.base_url, **settings})


def async_client_of(server: LimitedServer, **settings: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(**{"api_key": "k", "base_url": server.base_url, **settings})


def asked(text: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


def chat(resource: Any, text: str) -> str:
    return resource.create(**asked(text)).choices[0].message.content


async def achat(resource: Any, text: str) -> str:
    return (await resource.create(**asked(text))).choices[0].message.content


def in_threads(resource: Any, texts: list[str]) -> list[str]:
    with ThreadPoolExecutor(len(texts)) as pool:
        return list(pool.map(lambda text: chat(resource, text), texts))


async def in_tasks(resource: Any, texts: list[str]) -> list[str]:
    return list(await asyncio.gather(*(achat(resource, text) for text in texts)))


def texts_of(name: str, number: int = 24) -> list[str]:
    return [f"{name}{index}" for index in range(number)]


def answers_to(texts: list[str]) -> list[str]:
    return [f"re: {text}" for text in texts]


def only_endpoint(gate: EndpointGate) -> Endpoint:
    (endpoint,) = gate.endpoints._endpoints.values()
    return endpoint


@pytest.mark.parametrize("retry_after", [False, True])
async def test_tasks_are_all_answered(gate: EndpointGate, retry_after: bool) -> None:
    with LimitedServer(RATE, answer_s=0.01, retry_after=retry_after) as server:
        async with async_client_of(server) as client:
            resource = limited_resource(client.chat.completions, gate)
            first, second = texts_of("a"), texts_of("b")
            assert await in_tasks(resource, first) == answers_to(first)
            num_calls = server.num_calls
            assert await in_tasks(resource, second) == answers_to(second)
        assert num_calls <= 2.1 * 24
        assert server.num_calls - num_calls <= 1.2 * 24


async def test_tasks_and_threads_share_one_endpoint(gate: EndpointGate) -> None:
    with LimitedServer(RATE, answer_s=0.01) as server, client_of(server) as client:
        async with async_client_of(server) as other:
            resource = limited_resource(client.chat.completions, gate)
            shared = limited_resource(other.chat.completions, gate)
            threads, tasks = texts_of("thread"), texts_of("task")
            found = await asyncio.gather(
                asyncio.to_thread(in_threads, resource, threads), in_tasks(shared, tasks)
            )
    assert found == [answers_to(threads), answers_to(tasks)]
    assert len(gate.endpoints) == 1
    assert server.num_calls <= 2.1 * 48


def test_every_way_of_calling_is_limited(gate: EndpointGate) -> None:
    refusals = {0, 2, 4, 6, 8, 10}

    def script(number: int, text: str) -> ScriptedAnswer | None:
        return ScriptedAnswer(429) if number in refusals else None

    with LimitedServer(script=script) as server, client_of(server) as client:
        resource = limited_resource(client.chat.completions, gate)
        limited = LimitedClient(lambda: client, gate)
        assert chat(resource, "a") == "re: a"
        raw = resource.with_raw_response.create(**asked("b"))
        assert raw.parse().choices[0].message.content == "re: b"
        assert resource.parse(**asked("c")).choices[0].message.content == "re: c"
        raw = limited.with_raw_response.chat.completions.create(**asked("d"))
        assert raw.parse().choices[0].message.content == "re: d"
        assert chat(limited.chat.completions, "e") == "re: e"
        texts = limited.embeddings.create(model="m", input=["f"], encoding_format="float")
        assert texts.data[0].embedding == [1.0, 1.0]
        assert server.num_refused == 6
        assert server.num_calls == 12
    assert len(gate.endpoints) == 1


async def test_every_way_of_calling_in_a_loop_is_limited(gate: EndpointGate) -> None:
    def script(number: int, text: str) -> ScriptedAnswer | None:
        return ScriptedAnswer(429) if number % 2 == 0 else None

    with LimitedServer(script=script) as server:
        async with async_client_of(server) as client:
            resource = limited_resource(client.chat.completions, gate)
            limited = LimitedClient(lambda: client, gate)
            assert await achat(resource, "a") == "re: a"
            raw = await resource.with_raw_response.create(**asked("b"))
            assert raw.parse().choices[0].message.content == "re: b"
            assert (await resource.parse(**asked("c"))).choices[0].message.content == "re: c"
            async with limited.beta.chat.completions.stream(**asked("d")) as stream:
                assert (await stream.get_final_completion()).choices[0].message.content == "re:d"
            assert server.num_refused == 4
            assert server.num_calls == 8


def test_the_attempts_are_those_of_the_client(gate: EndpointGate) -> None:
    with (
        LimitedServer(script=lambda number, text: ScriptedAnswer(429)) as server,
        client_of(server, max_retries=1) as client,
    ):
        with pytest.raises(openai.RateLimitError, match="refused with 429"):
            chat(limited_resource(client.chat.completions, gate), "a")
        assert server.retries == [0, 1]
        assert len(set(server.idempotency_keys)) == 1
        assert only_endpoint(gate).limit.num_in_flight == 0


def test_an_error_that_no_client_tries_again_is_raised_at_once(gate: EndpointGate) -> None:
    with (
        LimitedServer(script=lambda number, text: ScriptedAnswer(400)) as server,
        client_of(server) as client,
    ):
        with pytest.raises(openai.BadRequestError):
            chat(limited_resource(client.chat.completions, gate), "a")
        assert server.num_calls == 1
        assert only_endpoint(gate).limit.bound is None


def test_a_server_error_is_tried_again_and_limits_nothing(gate: EndpointGate) -> None:
    def script(number: int, text: str) -> ScriptedAnswer | None:
        return ScriptedAnswer(500) if number == 0 else None

    with LimitedServer(script=script) as server, client_of(server) as client:
        assert chat(limited_resource(client.chat.completions, gate), "a") == "re: a"
        assert server.num_calls == 2
        assert only_endpoint(gate).limit.bound is None


def test_a_timeout_is_a_refusal(gate: EndpointGate) -> None:
    with (
        LimitedServer(answer_s=5.0) as server,
        client_of(server, timeout=0.05, max_retries=0) as client,
    ):
        with pytest.raises(openai.APITimeoutError):
            chat(limited_resource(client.chat.completions, gate), "a")
        assert only_endpoint(gate).limit.bound == 1


def test_what_an_answer_says_of_the_requests_left_is_heeded(gate: EndpointGate) -> None:
    empty = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}
    soon = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m40s"}

    def script(number: int, text: str) -> ScriptedAnswer | None:
        return ScriptedAnswer(200, empty if text == "a" else soon)

    with LimitedServer(script=script) as server, client_of(server) as client:
        create = limited_resource(client.chat.completions, gate).with_raw_response.create
        create(**asked("a"))  # beyond what is believed
        create(**asked("b"))
        hurried = EndpointGate(deadline=lambda: time.monotonic() + 0.05, endpoints=gate.endpoints)
        with pytest.raises(TimeoutError, match="until its deadline"):
            chat(limited_resource(client.chat.completions, hurried), "c")
        assert server.texts == ["a", "b"]


def test_a_stream_keeps_its_place_until_it_is_read(gate: EndpointGate, server: Any) -> None:
    with client_of(server) as client:
        resource = limited_resource(client.chat.completions, gate)
        stream = resource.create(**asked("a"), stream=True)
        assert isinstance(stream, openai.Stream)
        limit = only_endpoint(gate).limit
        assert limit.num_in_flight == 1
        words = [chunk.choices[0].delta.content for chunk in stream]
        assert (words, limit.num_in_flight) == (["re:", "a"], 0)


def test_a_stream_gives_its_place_back_when_it_is_closed_or_goes(
    gate: EndpointGate, server: LimitedServer
) -> None:
    server.streams_end = False
    with client_of(server) as client:
        resource = limited_resource(client.chat.completions, gate)
        with resource.create(**asked("a"), stream=True) as stream:
            limit = only_endpoint(gate).limit
            next(iter(stream))
            assert limit.num_in_flight == 1
        assert limit.num_in_flight == 0
        raw = resource.with_raw_response.create(**asked("b"), stream=True)
        assert limit.num_in_flight == 1
        raw.parse().close()
        assert limit.num_in_flight == 0
        lost = resource.create(**asked("c"), stream=True)
        assert limit.num_in_flight == 1
        del lost
        gc.collect()
        assert limit.num_in_flight == 0
        server.streams_end = True


async def test_a_stream_of_a_loop_keeps_its_place_until_it_is_read(
    gate: EndpointGate, server: LimitedServer
) -> None:
    async with async_client_of(server) as client:
        resource = limited_resource(client.chat.completions, gate)
        stream = await resource.create(**asked("a"), stream=True)
        limit = only_endpoint(gate).limit
        assert limit.num_in_flight == 1
        words = [chunk.choices[0].delta.content async for chunk in stream]
        assert (words, limit.num_in_flight) == (["re:", "a"], 0)


def test_a_client_whose_key_changes_is_another_endpoint_from_then_on(
    gate: EndpointGate, server: LimitedServer
) -> None:
    with client_of(server) as client:
        resource = limited_resource(client.chat.completions, gate)
        stream = resource.create(**asked("a"), stream=True)
        client.api_key = "other"
        assert chat(resource, "b") == "re: b"
        first, second = gate.endpoints._endpoints.values()
        assert (first.limit.num_in_flight, second.limit.num_in_flight) == (1, 0)
        stream.close()
        assert first.limit.num_in_flight == 0
    assert server.keys == ["k", "other"]
    assert "other" not in repr(list(gate.endpoints._endpoints))


def test_keys_and_servers_and_kinds_of_clients_tell_endpoints_apart() -> None:
    def key(**settings: Any) -> Any:
        return endpoint_key(
            openai.OpenAI(**{"api_key": "k", "base_url": "http://a/v1", **settings})
        )

    assert key() == key()
    assert key() == endpoint_key(openai.AsyncOpenAI(api_key="k", base_url="http://a/v1"))
    assert len({key(), key(api_key="l"), key(base_url="http://b/v1")}) == 3


def test_a_key_provider_counts_by_identity() -> None:
    provider, other = (lambda: "k"), (lambda: "k")
    one = openai.OpenAI(api_key=provider, base_url="http://a/v1")
    before = endpoint_key(one)
    one.api_key = "as the provider said"
    assert endpoint_key(one) == before
    assert endpoint_key(openai.OpenAI(api_key=provider, base_url="http://a/v1")) == before
    assert endpoint_key(openai.OpenAI(api_key=other, base_url="http://a/v1")) != before


def test_an_azure_deployment_is_an_endpoint() -> None:
    settings: dict[str, Any] = {"api_version": "1", "azure_endpoint": "http://a", "api_key": "k"}
    named = openai.AzureOpenAI(**settings, azure_deployment="d")
    free = openai.AzureOpenAI(**settings)
    keys = {endpoint_key(client, {"model": model}) for client in (named, free) for model in "xy"}
    assert len(keys) == 4
    assert endpoint_key(named)[1] == "http://a/openai/deployments/d/"  # type: ignore[index]


#: of a program that knows no retrieved texts and no other server
NOTHING = ServerHooks(
    route=lambda prompt, model: None,
    annotate=lambda prompt: None,
    aannotate=lambda prompt: asyncio.sleep(0),
    gate=lambda: None,
)


def test_a_telling_resource_over_a_limited_one_is_limited(gate: EndpointGate) -> None:
    def script(number: int, text: str) -> ScriptedAnswer | None:
        return ScriptedAnswer(429) if number % 2 == 0 else None

    with LimitedServer(script=script) as server, client_of(server) as client:
        limited = limited_resource(client.chat.completions, gate)
        told = telling_resource(limited, lambda: client, NOTHING, [])
        assert chat(told, "a") == "re: a"
        whole = LimitedClient(lambda: client, gate)
        telling = TellingClient(lambda: whole, lambda: client, NOTHING, [])
        assert chat(telling.chat.completions, "b") == "re: b"
        assert (server.num_calls, server.num_refused) == (4, 2)
    assert len(gate.endpoints) == 1


def test_llama_index_calls_through_a_limited_client(gate: EndpointGate) -> None:
    embeddings = pytest.importorskip("llama_index.embeddings.openai")
    with LimitedServer(RATE) as server:
        model = embeddings.OpenAIEmbedding(
            model_name="m", api_key="k", api_base=server.base_url, max_retries=2
        )
        client = model._get_client()
        model._client = LimitedClient(lambda: client, gate)
        with ThreadPoolExecutor(20) as pool:
            found = list(pool.map(model.get_text_embedding, texts_of("a", 20)))
        assert [vector[0] for vector in found] == [float(len(t)) for t in texts_of("a", 20)]
        assert server.num_calls <= 2.1 * 20
        assert len(gate.endpoints) == 1
        client.close()

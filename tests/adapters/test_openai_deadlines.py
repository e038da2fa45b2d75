"""Calls of the openai package in a request with a deadline: they end at it, if not before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from limited_server import LimitedServer, ScriptedAnswer

from rag_accel import DeadlineError
from rag_accel.engines.http.endpoints import Endpoint, EndpointGate, Endpoints
from rag_accel_adapters.libraries.openai_limited import limited_resource, shortened

SOON_S = 0.2
#: of the server; more than any deadline here
SILENCE_S = 2.0
ASKED: Any = {"model": "m", "messages": [{"role": "user", "content": "a"}]}


@pytest.fixture
def silent() -> Iterator[LimitedServer]:
    with LimitedServer(answer_s=SILENCE_S) as made:
        yield made


def gate_of(left_s: float | None = SOON_S, *, is_cut: bool = True) -> EndpointGate:
    """Return a gate for calls of a request that has so many seconds left when its call begins."""

    def deadline() -> float | None:
        return None if left_s is None else time.monotonic() + left_s

    return EndpointGate(deadline=deadline, endpoints=Endpoints(), is_cut=is_cut)


def ask(server: LimitedServer, gate: EndpointGate, **settings: Any) -> str:
    how = {"api_key": "k", "base_url": server.base_url, **settings}
    with openai.OpenAI(**how) as client:
        resource = limited_resource(client.chat.completions, gate)
        return resource.create(**ASKED).choices[0].message.content


def aask(server: LimitedServer, gate: EndpointGate, **settings: Any) -> str:
    async def main() -> str:
        how = {"api_key": "k", "base_url": server.base_url, **settings}
        async with openai.AsyncOpenAI(**how) as client:
            resource = limited_resource(client.chat.completions, gate)
            return (await resource.create(**ASKED)).choices[0].message.content

    return asyncio.run(main())


Ask = Callable[..., str]
anyhow = pytest.mark.parametrize("way", [ask, aask])


def endpoint_of(gate: EndpointGate) -> Endpoint:
    (endpoint,) = gate.endpoints._endpoints.values()
    return endpoint


@anyhow
def test_a_call_ends_at_the_deadline_and_is_not_repeated(way: Ask, silent: LimitedServer) -> None:
    gate, began = gate_of(), time.monotonic()
    with pytest.raises(DeadlineError, match="no answer at the deadline") as raised:
        way(silent, gate)
    assert SOON_S <= time.monotonic() - began + 0.02 < SILENCE_S
    assert isinstance(raised.value.__cause__, openai.APITimeoutError)
    assert silent.num_calls == 1
    assert not endpoint_of(gate).is_busy


@anyhow
def test_an_endpoint_is_not_blamed_for_a_short_deadline(way: Ask, silent: LimitedServer) -> None:
    gate = gate_of()
    with pytest.raises(DeadlineError):
        way(silent, gate)
    assert endpoint_of(gate).limit.bound is None


@anyhow
def test_a_shorter_timeout_stays_with_its_own_error(way: Ask, silent: LimitedServer) -> None:
    gate = gate_of(30.0)
    with pytest.raises(openai.APITimeoutError):
        way(silent, gate, timeout=0.1, max_retries=0)
    assert endpoint_of(gate).limit.bound is not None, "that counts as a refusal"


@anyhow
def test_an_answer_in_time_is_the_same(way: Ask) -> None:
    with LimitedServer() as server:
        assert way(server, gate_of(30.0)) == way(server, gate_of(None)) == "re: a"


@anyhow
def test_a_deadline_already_past_sends_nothing(way: Ask) -> None:
    with LimitedServer() as server:
        with pytest.raises(DeadlineError):
            way(server, gate_of(-1.0))
        assert not server.texts


@anyhow
def test_a_pause_beyond_the_deadline_is_not_waited_for(way: Ask) -> None:
    def refuse(number: int, text: str) -> ScriptedAnswer:
        return ScriptedAnswer(429, {"retry-after": "20"})

    began = time.monotonic()
    with LimitedServer(script=refuse) as server, pytest.raises(openai.RateLimitError):
        way(server, gate_of(5.0))
    assert time.monotonic() - began < 4.0


@anyhow
def test_a_call_that_others_share_is_not_cut(way: Ask) -> None:
    with LimitedServer(answer_s=2 * SOON_S) as server:
        assert way(server, gate_of(is_cut=False)) == "re: a"


def test_a_stream_that_falls_silent_ends_at_the_deadline() -> None:
    with LimitedServer() as server, openai.OpenAI(api_key="k", base_url=server.base_url) as client:
        server.streams_end = False
        resource = limited_resource(client.chat.completions, gate_of(1.0))
        texts: list[str] = []
        with pytest.raises(DeadlineError), resource.create(**ASKED, stream=True) as stream:
            texts += [chunk.choices[0].delta.content for chunk in stream]
        server.streams_end = True


async def test_a_stream_of_a_loop_that_falls_silent_ends_at_the_deadline() -> None:
    with LimitedServer() as server:
        server.streams_end = False
        async with openai.AsyncOpenAI(api_key="k", base_url=server.base_url) as client:
            resource = limited_resource(client.chat.completions, gate_of(1.0))
            texts: list[str] = []
            stream = await resource.create(**ASKED, stream=True)

            async def read() -> None:
                async for chunk in stream:
                    texts.append(chunk.choices[0].delta.content)

            with pytest.raises(DeadlineError):
                await read()
            assert texts == ["re:", "a"]
            server.streams_end = True


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (None, 2.0),
        (1.0, 1.0),
        (5, 2.0),
        (httpx.Timeout(5.0, connect=1.0), httpx.Timeout(2.0, connect=1.0)),
        (httpx.Timeout(None, connect=9.0), httpx.Timeout(2.0)),
    ],
)
def test_each_part_of_a_timeout_is_shortened(own: Any, expected: Any) -> None:
    assert shortened(own, 2.0) == expected


def test_a_timeout_that_is_short_enough_is_the_very_same() -> None:
    own = httpx.Timeout(1.0)
    assert shortened(own, 2.0) is own

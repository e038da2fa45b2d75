"""Clients of a program's own whose calls go to any of the servers that its accelerator names."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_openai")

sys.path.append(str(Path(__file__).parents[1] / "engines" / "llm"))

from langchain_openai import ChatOpenAI
from named_servers import NamedServer, wait_for_prompts
from openai import NotFoundError

import langchain_rag_accel
from rag_accel import Accelerator
from rag_accel.engines import RemoteLLM, RemoteServer
from rag_accel.engines.replicas.pool_placement import PoolPlacement

OWN_KEY = "the-key-of-the-program"


@pytest.fixture
def servers() -> Iterator[list[NamedServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(NamedServer(name)) for name in ("a", "b")]


@pytest.fixture
def accelerator(servers: list[NamedServer]) -> Iterator[Accelerator]:
    several = [RemoteServer(servers[0].base_url), RemoteServer(servers[1].base_url, "other")]
    with Accelerator(llm=RemoteLLM(several, "m"), strict=True) as made:
        yield made
        assert made.bypassed == {}


def chat(server: NamedServer, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(model="m", base_url=server.base_url, api_key=OWN_KEY, **options)  # type: ignore[arg-type]


def placement(accelerator: Accelerator) -> PoolPlacement:
    model: Any = accelerator.local_llms.served_by(
        next(iter(accelerator.local_llms._given))._servers[0].base_url, "m"
    )
    return model.placement


def loads(accelerator: Accelerator) -> list[int]:
    """Return how many calls each server has now."""
    return [placement(accelerator).loads[at].works for at in range(2)]


def is_paused(accelerator: Accelerator, at: int) -> bool:
    return placement(accelerator).loads[at].failures > 0


def _invoke(model: Any) -> str:
    return model.invoke("hi").content


def _ainvoke(model: Any) -> str:
    return asyncio.run(model.ainvoke("hi")).content


def _stream(model: Any) -> str:
    return next(iter(model.stream("hi"))).content


def _astream(model: Any) -> str:
    async def first() -> str:
        async for chunk in model.astream("hi"):
            return chunk.content
        raise AssertionError("nothing came")

    return asyncio.run(first())


WAYS = {"invoke": _invoke, "ainvoke": _ainvoke, "stream": _stream, "astream": _astream}
anyhow = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


@anyhow
def test_calls_go_to_the_server_that_answers(
    servers: list[NamedServer], accelerator: Accelerator, way: Callable[[Any], str]
) -> None:
    servers[0].status = 503
    fast = langchain_rag_accel.accelerate(chat(servers[0]), accelerator=accelerator)
    assert way(fast) == "b"
    assert servers[1].models == ["other"]
    gc.collect()
    assert loads(accelerator) == [0, 0]


@anyhow
def test_calls_leave_a_server_that_refuses_what_another_answers(
    servers: list[NamedServer], accelerator: Accelerator, way: Callable[[Any], str]
) -> None:
    servers[0].status = 404
    fast = langchain_rag_accel.accelerate(chat(servers[0]), accelerator=accelerator)
    assert way(fast) == "b"
    assert is_paused(accelerator, 0)
    gc.collect()
    assert loads(accelerator) == [0, 0]


@pytest.mark.parametrize("way", [_invoke, _stream])
def test_a_call_that_every_server_refuses_pauses_none(
    servers: list[NamedServer], accelerator: Accelerator, way: Callable[[Any], str]
) -> None:
    for server in servers:
        server.status = 404
    fast = langchain_rag_accel.accelerate(chat(servers[0]), accelerator=accelerator)
    with pytest.raises(NotFoundError):
        way(fast)
    assert not is_paused(accelerator, 0)
    assert not is_paused(accelerator, 1)
    gc.collect()
    assert loads(accelerator) == [0, 0]


def test_users_share_both_servers(servers: list[NamedServer], accelerator: Accelerator) -> None:
    fast = langchain_rag_accel.accelerate(chat(servers[0]), accelerator=accelerator)
    for server in servers:
        server.may_end.clear()
    with ThreadPoolExecutor(1) as threads:
        batch = threads.submit(fast.batch, [f"prompt {n}" for n in range(4)])
        wait_for_prompts(*servers)
        for server in servers:
            server.may_end.set()
        found = [message.content for message in batch.result(20)]
    assert set(found) == {"a", "b"}
    assert loads(accelerator) == [0, 0]


def test_a_stream_counts_until_its_end(
    servers: list[NamedServer], accelerator: Accelerator
) -> None:
    fast = langchain_rag_accel.accelerate(chat(servers[0]), accelerator=accelerator)
    for server in servers:
        server.may_end.clear()
    chunks = fast.stream("hi")
    first = next(chunks).content
    assert sorted(loads(accelerator)) == [0, 1]
    for server in servers:
        server.may_end.set()
    assert [chunk.content for chunk in chunks if chunk.content] == [first]
    gc.collect()
    assert loads(accelerator) == [0, 0]


def test_another_server_sees_no_key_of_the_program(
    servers: list[NamedServer], accelerator: Accelerator
) -> None:
    servers[0].status = 503
    own = {"x-own": "secret", "authorization": "Bearer own"}
    model = chat(servers[0], default_headers=own, organization="acme")
    fast = langchain_rag_accel.accelerate(model, accelerator=accelerator)
    assert fast.invoke("hi").content == "b"
    assert servers[0].headers[0]["x-own"] == "secret"
    sent = servers[1].headers[0]
    assert sent["authorization"] == "Bearer none"
    assert not {"openai-organization", "x-own"} & sent.keys()


def test_another_model_is_asked_where_it_is(
    servers: list[NamedServer], accelerator: Accelerator
) -> None:
    model = ChatOpenAI(model="another", base_url=servers[0].base_url, api_key=OWN_KEY)  # type: ignore[arg-type]
    fast = langchain_rag_accel.accelerate(model, accelerator=accelerator)
    assert [fast.invoke(f"q{n}").content for n in range(4)] == ["a"] * 4


def test_where_all_are_down_the_error_is_the_clients_own(
    servers: list[NamedServer], accelerator: Accelerator
) -> None:
    from openai import InternalServerError

    for server in servers:
        server.status = 503
    fast = langchain_rag_accel.accelerate(chat(servers[0], max_retries=0), accelerator=accelerator)
    with pytest.raises(InternalServerError):
        fast.invoke("hi")
    assert [len(server.prompts) for server in servers] == [1, 1]
    assert loads(accelerator) == [0, 0]


def test_a_refusal_of_the_request_is_told_at_once(
    servers: list[NamedServer], accelerator: Accelerator
) -> None:
    from openai import BadRequestError

    for server in servers:
        server.status = 400
    fast = langchain_rag_accel.accelerate(chat(servers[0]), accelerator=accelerator)
    with pytest.raises(BadRequestError):
        fast.invoke("hi")
    assert sum(len(server.prompts) for server in servers) == 1


def test_stages_and_programs_see_one_load(
    servers: list[NamedServer], accelerator: Accelerator
) -> None:
    fast = langchain_rag_accel.accelerate(chat(servers[0]), accelerator=accelerator)
    servers[0].may_end.clear()
    servers[1].may_end.clear()
    chunks = fast.stream("hi")
    next(chunks)
    busy = loads(accelerator).index(1)
    servers[1 - busy].may_end.set()
    from rag_accel import END, START, RAGraph

    graph = RAGraph().add_generation("g", "{input}").add_edge(START, "g").add_edge("g", END)
    assert accelerator.run(graph, input="q") == ("b", "a")[busy]
    servers[busy].may_end.set()
    list(chunks)


def test_explain_says_that_calls_are_spread(
    servers: list[NamedServer], accelerator: Accelerator
) -> None:
    told = langchain_rag_accel.explain(
        langchain_rag_accel.accelerate(chat(servers[0]), accelerator=accelerator)
    )
    assert "calls of a server of a RemoteLLM go to any of its servers" in told


def test_a_program_of_llama_index_is_spread_too(
    servers: list[NamedServer], accelerator: Accelerator
) -> None:
    like = pytest.importorskip("llama_index.llms.openai_like")
    import llama_index_rag_accel

    servers[0].status = 503
    model = like.OpenAILike(
        model="m", api_base=servers[0].base_url, api_key=OWN_KEY, is_chat_model=True
    )
    fast = llama_index_rag_accel.accelerate(model, accelerator=accelerator)
    assert fast.complete("hi").text == "b"
    assert list(fast.stream_complete("hi"))[-1].text == "bb"
    gc.collect()
    assert loads(accelerator) == [0, 0]

"""Equal texts are asked for once, vectors are cached, and whoever is alone waits for nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
import shared_calls_kit
from embeddings_server import EmbeddingsServer, Refusal, vector_of
from langchain_openai import OpenAIEmbeddings
from shared_calls_kit import PATIENCE_S

from langchain_rag_accel import accelerate, activate
from rag_accel import Accelerator

server = shared_calls_kit.server
EQUAL = ["equal"] * 256

Make = Callable[..., OpenAIEmbeddings]


@pytest.fixture
async def make(server: EmbeddingsServer) -> AsyncIterator[Make]:
    """Yield a maker of embeddings on that server, whose connections end with the test."""
    clients: list[Any] = []

    def made(**fields: Any) -> OpenAIEmbeddings:
        how: dict[str, Any] = {"base_url": server.base_url, "api_key": "k", "timeout": PATIENCE_S}
        clients.extend([openai.OpenAI(**how), openai.AsyncOpenAI(**how)])
        return OpenAIEmbeddings(
            model="m",
            client=clients[-2].embeddings,
            async_client=clients[-1].embeddings,
            check_embedding_ctx_length=False,
            **{"api_key": "k", "base_url": server.base_url, **fields},
        )

    yield made
    for client in clients:
        closing = client.close()
        if closing is not None:
            await closing


@pytest.fixture
def fast(make: Make, accelerator: Accelerator) -> OpenAIEmbeddings:
    return accelerate(make(), accelerator=accelerator)


async def test_equal_questions_of_tasks_are_one_call(
    server: EmbeddingsServer, fast: OpenAIEmbeddings
) -> None:
    found = await asyncio.gather(*map(fast.aembed_query, EQUAL))
    assert found == [vector_of("equal")] * 256
    assert server.calls == [["equal"]]


def test_equal_questions_of_threads_are_one_call(
    server: EmbeddingsServer, fast: OpenAIEmbeddings
) -> None:
    with ThreadPoolExecutor(32) as pool:
        found = list(pool.map(fast.embed_query, EQUAL))
    assert found == [vector_of("equal")] * 256
    assert server.calls == [["equal"]]


async def test_each_caller_has_a_vector_of_his_own(
    server: EmbeddingsServer, fast: OpenAIEmbeddings
) -> None:
    first, second = await asyncio.gather(fast.aembed_query("a"), fast.aembed_query("a"))
    first[0] = 7.0
    assert second == vector_of("a")
    assert await fast.aembed_query("a") == vector_of("a")


async def test_an_error_is_each_callers_own(
    server: EmbeddingsServer, fast: OpenAIEmbeddings
) -> None:
    server.bad = {"bad"}
    asking = (fast.aembed_query("bad") for _ in range(8))
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert {type(error) for error in found} == {openai.BadRequestError}
    assert len({id(error) for error in found}) == 8
    with pytest.raises(openai.BadRequestError):
        await fast.aembed_query("bad")


async def test_a_caller_that_is_cancelled_takes_nobody_with_him(
    server: EmbeddingsServer, fast: OpenAIEmbeddings
) -> None:
    server.hangs = True
    leader = asyncio.ensure_future(fast.aembed_query("a"))
    follower = asyncio.ensure_future(fast.aembed_query("a"))
    leaving = asyncio.ensure_future(fast.aembed_query("a"))
    while not server.calls:  # noqa: ASYNC110 - a thread without a loop fills it
        await asyncio.sleep(0.001)
    leaving.cancel()
    await asyncio.wait([leaving])
    leader.cancel()
    server.hangs = False
    assert await follower == vector_of("a")
    assert leader.cancelled() or leaving.cancelled()


async def test_a_blocking_call_does_not_wait_for_a_task_of_its_own_loop(
    server: EmbeddingsServer, fast: OpenAIEmbeddings
) -> None:
    task = asyncio.ensure_future(fast.aembed_query("a"))
    await asyncio.sleep(0)
    assert fast.embed_query("a") == vector_of("a")
    assert await task == vector_of("a")


def test_a_lone_caller_asks_in_its_own_thread(
    server: EmbeddingsServer, make: Make, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = accelerate(make(), accelerator=accelerator)
    before = set(threading.enumerate())
    for number in range(3):
        assert fast.embed_query(f"{number}") == vector_of(f"{number}")
    asking = {thread.name for thread in set(threading.enumerate()) - before}
    assert "hosted-embedding" not in asking
    assert [len(texts) for texts in server.calls] == [1, 1, 1]


def test_no_cache_asks_each_time(server: EmbeddingsServer, make: Make) -> None:
    with Accelerator(strict=True, hosted_cache_mb=0) as accelerator:
        fast = accelerate(make(), accelerator=accelerator)
        assert [fast.embed_query("a") for _ in range(3)] == [vector_of("a")] * 3
    assert server.calls == [["a"]] * 3


async def test_keys_do_not_share_vectors(
    server: EmbeddingsServer, make: Make, accelerator: Accelerator
) -> None:
    plain = make()
    with activate(accelerator):
        for key in ("one", "two"):
            for resource in (plain.client, plain.async_client):
                resource._client.api_key = key
            await asyncio.gather(*(plain.aembed_query("a") for _ in range(4)))
    assert [(heard.texts, heard.key) for heard in server.heard] == [
        (("a",), "one"),
        (("a",), "two"),
    ]


async def test_another_model_behind_the_name_is_asked_again(
    server: EmbeddingsServer, fast: OpenAIEmbeddings
) -> None:
    texts = [f"text {number}" for number in range(16)]

    async def ask(texts: list[str]) -> list[list[float]]:
        return await asyncio.gather(*map(fast.aembed_query, texts))

    await ask(texts)
    server.vector = lambda text: vector_of(f"new {text}")
    server.answers_as = "another"
    await ask([f"more {number}" for number in range(16)])
    assert await ask(texts) == [vector_of(f"new {text}") for text in texts]


async def test_a_refused_leader_leaves_the_others_to_ask(
    server: EmbeddingsServer, fast: OpenAIEmbeddings
) -> None:
    server.refusals.extend([Refusal(401)])
    asking = (fast.aembed_query("a") for _ in range(16))
    found = await asyncio.gather(*asking, return_exceptions=True)
    errors = [one for one in found if isinstance(one, BaseException)]
    assert [type(error) for error in errors] == [openai.AuthenticationError]
    assert [one for one in found if one not in errors] == [vector_of("a")] * 15
    assert len(server.calls) <= 3

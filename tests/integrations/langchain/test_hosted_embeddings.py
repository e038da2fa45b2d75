"""Texts of concurrent callers reach an embeddings server in few calls."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from embeddings_server import EmbeddingsServer, Refusal, vector_of
from idle_accelerators import soon_idle
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings
from lc_waiting import wait_until

from langchain_rag_accel import accelerate, activate, explain
from langchain_rag_accel.coverage import coverage
from rag_accel import Accelerator

#: bounds a hang; nothing is measured
PATIENCE_S = 20.0
TEXTS = [f"text {number}" for number in range(64)]


@pytest.fixture
def server() -> Iterator[EmbeddingsServer]:
    """Yield a loopback server of embeddings."""
    with EmbeddingsServer() as made:
        yield made


Make = Callable[..., OpenAIEmbeddings]


@pytest.fixture
async def make(server: EmbeddingsServer) -> AsyncIterator[Make]:
    """Yield a maker of LangChain's embeddings on that server, whose connections end with the test.

    Nothing else closes them, and a socket that is collected open warns.
    """
    clients: list[openai.OpenAI] = []
    async_clients: list[openai.AsyncOpenAI] = []

    def made(**fields: Any) -> OpenAIEmbeddings:
        how = {
            "base_url": server.base_url,
            "api_key": "k",
            "timeout": PATIENCE_S,
            **fields.pop("how", {}),
        }
        clients.append(openai.OpenAI(**how))
        async_clients.append(openai.AsyncOpenAI(**how))
        return OpenAIEmbeddings(
            model="m",
            client=clients[-1].embeddings,
            async_client=async_clients[-1].embeddings,
            check_embedding_ctx_length=False,  # its tokenizer would be fetched
            **{"api_key": "k", "base_url": server.base_url, **fields},
        )

    yield made
    for client in clients:
        client.close()
    for async_client in async_clients:
        await async_client.close()


@pytest.fixture
def plain(make: Make) -> OpenAIEmbeddings:
    """Give embeddings as a program makes them."""
    return make()


def test_callers_in_threads_share_calls(
    server: EmbeddingsServer, plain: OpenAIEmbeddings, accelerator: Accelerator
) -> None:
    start = threading.Barrier(64)

    def ask(text: str) -> list[float]:
        start.wait()
        return plain.embed_query(text)

    with activate(accelerator), coverage() as meter, ThreadPoolExecutor(64) as pool:
        assert list(pool.map(ask, TEXTS)) == [vector_of(text) for text in TEXTS]
    assert len(server.calls) <= 8
    assert meter.passed_by == 0


async def test_callers_on_a_loop_share_calls(
    server: EmbeddingsServer, plain: OpenAIEmbeddings, accelerator: Accelerator
) -> None:
    with activate(accelerator):
        found = await asyncio.gather(*map(plain.aembed_query, TEXTS))
    assert found == [vector_of(text) for text in TEXTS]
    assert len(server.calls) <= 8


async def test_vectors_are_those_of_the_plain_object(
    server: EmbeddingsServer, plain: OpenAIEmbeddings, accelerator: Accelerator
) -> None:
    fast = accelerate(plain, accelerator=accelerator)
    documents, query = plain.embed_documents(TEXTS), plain.embed_query("q")
    server.calls.clear()
    assert fast.embed_documents(TEXTS) == documents
    assert await fast.aembed_documents(TEXTS) == documents
    assert fast.embed_query("q") == query
    assert await fast.aembed_query("q") == query
    assert [len(texts) for texts in server.calls] == [64, 64, 1, 1]
    assert "shares" in explain(fast) or "share its calls" in explain(fast)


def test_no_call_holds_more_texts_than_the_object_allows(
    server: EmbeddingsServer, make: Make, accelerator: Accelerator
) -> None:
    fast = accelerate(make(chunk_size=10), accelerator=accelerator)
    assert fast.embed_documents(TEXTS) == [vector_of(text) for text in TEXTS]
    assert sorted(len(texts) for texts in server.calls) == [4, *[10] * 6]


async def test_a_bad_text_fails_alone(
    server: EmbeddingsServer, plain: OpenAIEmbeddings, accelerator: Accelerator
) -> None:
    server.bad = {TEXTS[20]}
    with activate(accelerator):
        calls = map(plain.aembed_query, TEXTS)
        found = await asyncio.gather(*calls, return_exceptions=True)
    failed = [text for text, one in zip(TEXTS, found, strict=True) if isinstance(one, Exception)]
    assert failed == [TEXTS[20]]
    assert isinstance(found[20], openai.BadRequestError)


async def test_a_refusal_that_passes_delays_and_loses_nothing(
    server: EmbeddingsServer, plain: OpenAIEmbeddings, accelerator: Accelerator
) -> None:
    server.refusals.extend([Refusal(429, "0.05"), Refusal(429, "0.05")])
    with activate(accelerator):
        found = await asyncio.gather(*map(plain.aembed_query, TEXTS))
    assert found == [vector_of(text) for text in TEXTS]


async def test_a_refusal_that_stays_is_each_callers_own_error(
    server: EmbeddingsServer, make: Make, accelerator: Accelerator
) -> None:
    server.refusals.extend([Refusal(429)] * 200)
    plain = make(how={"max_retries": 0})
    with activate(accelerator):
        calls = map(plain.aembed_query, TEXTS[:8])
        found = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(error) for error in found} == {openai.RateLimitError}


def test_other_settings_are_other_calls(
    server: EmbeddingsServer, plain: OpenAIEmbeddings, accelerator: Accelerator
) -> None:
    with activate(accelerator):
        plain.embed_query("x")
        plain.model = "another"
        plain.embed_query("x")
        assert plain.embed_query("x") == vector_of("x")
    assert soon_idle(accelerator)


def test_an_object_that_is_gone_is_kept_by_nothing(make: Make, accelerator: Accelerator) -> None:
    passing = make()
    gone = weakref.ref(passing)
    with activate(accelerator):
        passing.embed_query("x")
    del passing
    wait_until(lambda: gc.collect() >= 0 and gone() is None, "a collected object")


async def test_a_store_over_a_server_embeds_its_questions_together(
    server: EmbeddingsServer, plain: OpenAIEmbeddings, accelerator: Accelerator
) -> None:
    store = InMemoryVectorStore.from_texts(TEXTS, plain)
    retriever = store.as_retriever(search_kwargs={"k": 1})
    server.calls.clear()
    with activate(accelerator):
        found = await asyncio.gather(*map(retriever.ainvoke, TEXTS))
    assert [one[0].page_content for one in found] == TEXTS
    assert len(server.calls) <= 8

"""Texts of concurrent callers reach an embeddings server in few calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest
import shared_calls_kit
from embeddings_server import EmbeddingsServer, vector_of
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings
from shared_calls_kit import PATIENCE_S, SharedCalls

import langchain_rag_accel
from langchain_rag_accel import accelerate, activate, explain
from langchain_rag_accel.coverage import coverage
from rag_accel import Accelerator

TEXTS = [f"text {number}" for number in range(64)]

server, plain = shared_calls_kit.server, shared_calls_kit.plain


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


class TestSharedCalls(SharedCalls):
    integration, coverage = langchain_rag_accel, staticmethod(coverage)
    bad_text, too_often = openai.BadRequestError, openai.RateLimitError
    trying, tries = {"how": {"max_retries": 0}}, 1
    num_passing = 2
    texts = TEXTS

    def embed(self, plain: OpenAIEmbeddings, text: str) -> list[float]:
        return plain.embed_query(text)

    async def aembed(self, plain: OpenAIEmbeddings, text: str) -> list[float]:
        return await plain.aembed_query(text)


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
    assert [len(texts) for texts in server.calls] == [64, 64, 1]  # the query's vector is cached
    assert "shares" in explain(fast) or "share its calls" in explain(fast)


def test_no_call_holds_more_texts_than_the_object_allows(
    server: EmbeddingsServer, make: Make, accelerator: Accelerator
) -> None:
    fast = accelerate(make(chunk_size=10), accelerator=accelerator)
    assert fast.embed_documents(TEXTS) == [vector_of(text) for text in TEXTS]
    assert sorted(len(texts) for texts in server.calls) == [4, *[10] * 6]


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

"""Texts of concurrent callers reach an embeddings server in few calls."""

from __future__ import annotations

import asyncio

import lc_hosted
import shared_calls_kit
from embeddings_server import EmbeddingsServer, vector_of
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings
from lc_hosted import Make
from shared_calls_kit import SharedCalls

import langchain_rag_accel
from langchain_rag_accel import accelerate, activate
from langchain_rag_accel.coverage import coverage
from rag_accel import Accelerator

TEXTS = [f"text {number}" for number in range(64)]

server, plain = shared_calls_kit.server, shared_calls_kit.plain
opened, make = shared_calls_kit.opened, lc_hosted.make


class TestSharedCalls(SharedCalls):
    integration, coverage = langchain_rag_accel, staticmethod(coverage)
    clients = ("client", "async_client")
    trying, tries = {"max_retries": 0}, 1
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

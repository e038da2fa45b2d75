"""Texts of concurrent callers of an ``OpenAIEmbedding`` reach its server in few calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("llama_index.embeddings.openai")

import shared_calls_kit
from embeddings_server import EmbeddingsServer
from li_programs import recording
from llama_index.embeddings.openai import OpenAIEmbedding, base
from openai.resources.embeddings import Embeddings
from openai_http import httpx
from shared_calls_kit import PATIENCE_S, HostedRecognition, SharedCalls

import llama_index_rag_accel
from llama_index_rag_accel import accelerate
from llama_index_rag_accel.coverage import coverage
from rag_accel import Accelerator
from rag_accel_adapters.llama_index.models import hosted_calls

TEXTS = [f"text {number}" for number in range(48)]
#: its queries and texts are embedded by different engines
TWO_ENGINES = "ada"
CLIENTS = ("_client", "_aclient")

Make = Callable[..., OpenAIEmbedding]

server, plain, opened = shared_calls_kit.server, shared_calls_kit.plain, shared_calls_kit.opened


@pytest.fixture
def make(server: EmbeddingsServer, opened: list[Any]) -> Make:
    """Return a maker of embeddings on that server."""

    def made(cls: type[OpenAIEmbedding] = OpenAIEmbedding, **fields: Any) -> OpenAIEmbedding:
        given = {"model": "text-embedding-3-small", "api_key": "k", "max_retries": 1, **fields}
        embedding = cls(api_base=server.base_url, timeout=PATIENCE_S, **given)
        if embedding.reuse_client:
            opened.extend([embedding._get_client(), embedding._get_aclient()])
        return embedding

    return made


class TestSharedCalls(SharedCalls):
    integration, coverage = llama_index_rag_accel, staticmethod(coverage)
    clients = CLIENTS
    trying, tries = {}, 2
    texts = TEXTS

    def embed(self, plain: OpenAIEmbedding, text: str) -> list[float]:
        return plain.get_query_embedding(text)

    async def aembed(self, plain: OpenAIEmbedding, text: str) -> list[float]:
        return await plain.aget_query_embedding(text)


async def test_vectors_are_those_of_the_plain_object(
    server: EmbeddingsServer, plain: OpenAIEmbedding, accelerator: Accelerator
) -> None:
    fast = accelerate(plain, accelerator=accelerator)
    text, many = "two\nlines", ["some\nof", "several"]
    assert fast.get_query_embedding(text) == plain.get_query_embedding(text)
    assert fast.get_text_embedding(text) == plain.get_text_embedding(text)
    assert await fast.aget_query_embedding(text) == await plain.aget_query_embedding(text)
    assert await fast.aget_text_embedding(text) == await plain.aget_text_embedding(text)
    expected = plain.get_text_embedding_batch(many)
    assert fast.get_text_embedding_batch(many) == expected
    assert await fast.aget_text_embedding_batch(many) == expected
    assert {text for call in server.calls for text in call} == {"two lines", "some of", "several"}


async def test_queries_and_texts_are_asked_of_their_own_engines(
    server: EmbeddingsServer, make: Make, accelerator: Accelerator
) -> None:
    fast = accelerate(make(model=TWO_ENGINES), accelerator=accelerator)
    queries = [fast.aget_query_embedding(text) for text in TEXTS[:8]]
    await asyncio.gather(*queries, *(fast.aget_text_embedding(text) for text in TEXTS[8:16]))
    asked: dict[str, set[str]] = {}
    for model, texts in zip(server.models, server.calls, strict=True):
        asked.setdefault(model, set()).update(texts)
    assert asked == {
        "text-search-ada-query-001": set(TEXTS[:8]),
        "text-search-ada-doc-001": set(TEXTS[8:16]),
    }
    assert len(server.calls) <= 8


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_events_and_spans_are_those_of_the_plain_object(
    plain: OpenAIEmbedding, accelerator: Accelerator, is_async: bool
) -> None:
    async def ask(embedding: OpenAIEmbedding) -> None:
        if is_async:
            await embedding.aget_query_embedding("a")
            await embedding.aget_text_embedding_batch(["b", "c"])
        else:
            embedding.get_query_embedding("a")
            embedding.get_text_embedding("b")

    with recording() as expected:
        await ask(plain)
    with recording() as found:
        await ask(accelerate(plain, accelerator=accelerator))
    assert found == expected


class Same(OpenAIEmbedding):
    """A subclass that changes nothing."""


def _client(embedding: OpenAIEmbedding) -> Any:
    return embedding._get_client()


class TestRecognition(HostedRecognition):
    hosted_calls, clients = staticmethod(hosted_calls), CLIENTS
    shared = (
        {},
        {"default_headers": {"x": "y"}},
        {"model": TWO_ENGINES},
        {"dimensions": 8, "embed_batch_size": 2},
        {"additional_kwargs": {"user": "u"}, "max_retries": 10},
        {"http_client": httpx.Client()},
        {"async_http_client": httpx.AsyncClient()},
    )
    refused = (
        ({"cls": Same}, "Same is a class of the program's"),
        ({"reuse_client": False}, "reuse_client=False makes a client for each call"),
        ({"max_retries": 0}, "max_retries=0"),
        ({"embed_batch_size": 1}, "embed_batch_size lets no texts share"),
        ({"additional_kwargs": {"extra_body": object()}}, "additional_kwargs holds what is no"),
        ({"additional_kwargs": {"encoding_format": "base64"}}, "decide how vectors are sent"),
        ({"http_client": httpx.Client(event_hooks={"request": [print]})}, "a hook in event_hooks"),
        ({"async_http_client": httpx.AsyncClient(auth=("a", "b"))}, "has an auth of its own"),
        ({"async_http_client": httpx.AsyncClient(verify=False)}, "the async client sends otherwi"),
    )
    changes = {
        "client": lambda one: setattr(one, "_client", object()),
        "resource": lambda one: vars(_client(one)).update(embeddings=object()),
        "another's resource": lambda one: vars(_client(one)).update(
            embeddings=_client(one).with_options().embeddings
        ),
        "async key": lambda one: setattr(one._aclient, "api_key", "another"),
        "create": lambda one: vars(_client(one).embeddings).update(create=print),
        "headers": lambda one: _client(one)._custom_headers.update(x="y"),
        "method": lambda one: vars(one).update(_get_query_embedding=print),
    }
    settings = (
        lambda one: setattr(one, "_query_engine", "another"),
        lambda one: one.additional_kwargs.update(user="u"),
    )
    functions = ((base, "get_embedding"), (base, "aget_embeddings"), (Embeddings, "create"))

"""Texts of concurrent callers of an ``OpenAIEmbedding`` reach its server in few calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest

pytest.importorskip("llama_index.embeddings.openai")

import httpx
import shared_calls_kit
from embeddings_server import EmbeddingsServer
from li_programs import TEXTS as FEW
from li_programs import recording
from llama_index.core import Document, VectorStoreIndex
from llama_index.embeddings.openai import OpenAIEmbedding, base
from openai.resources.embeddings import Embeddings
from shared_calls_kit import PATIENCE_S, SharedCalls

import llama_index_rag_accel
from llama_index_rag_accel import accelerate
from llama_index_rag_accel.coverage import coverage
from rag_accel import Accelerator
from rag_accel.errors import EngineOutputError
from rag_accel.interception.leaf_table import plain_method
from rag_accel.recognition.embeddings import HostedCalls
from rag_accel.recognition.known_classes import NotAdoptedError
from rag_accel_adapters.llama_index.hosted import hosted_calls

TEXTS = [f"text {number}" for number in range(48)]
#: its queries and texts are embedded by different engines
TWO_ENGINES = "ada"

server, plain = shared_calls_kit.server, shared_calls_kit.plain


Make = Callable[..., OpenAIEmbedding]


@pytest.fixture
async def make(server: EmbeddingsServer) -> AsyncIterator[Make]:
    """Yield a maker of embeddings on that server, whose connections end with the test."""
    clients: list[Any] = []

    def made(cls: type[OpenAIEmbedding] = OpenAIEmbedding, **fields: Any) -> OpenAIEmbedding:
        given = {"model": "text-embedding-3-small", "api_key": "k", "max_retries": 1, **fields}
        embedding = cls(api_base=server.base_url, timeout=PATIENCE_S, **given)
        if embedding.reuse_client and not {"http_client", "async_http_client"} & fields.keys():
            clients.extend([embedding._get_client(), embedding._get_aclient()])
        return embedding

    yield made
    for client in clients:
        closing = client.close()
        if closing is not None:
            await closing


def calls(embedding: OpenAIEmbedding) -> HostedCalls | None:
    """Return how an object asks, if its calls may be shared."""
    try:
        return hosted_calls(embedding, type(embedding), plain_method)
    except NotAdoptedError:
        return None


class TestSharedCalls(SharedCalls):
    integration, coverage = llama_index_rag_accel, staticmethod(coverage)
    bad_text, too_often = openai.BadRequestError, openai.RateLimitError
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


async def test_an_index_embeds_its_questions_together(
    server: EmbeddingsServer, plain: OpenAIEmbedding, accelerator: Accelerator
) -> None:
    documents = [Document(text=text, id_=str(at)) for at, text in enumerate(FEW)]
    retriever = VectorStoreIndex.from_documents(documents, embed_model=plain).as_retriever()
    expected = [await retriever.aretrieve(text) for text in TEXTS[:16]]
    server.calls.clear()
    fast = accelerate(retriever, accelerator=accelerator)
    found = await asyncio.gather(*map(fast.aretrieve, TEXTS[:16]))
    assert [[n.node_id for n in one] for one in found] == [
        [n.node_id for n in one] for one in expected
    ]
    assert len(server.calls) <= 4


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


SHARING: list[dict[str, Any]] = [
    {},
    {"default_headers": {"x": "y"}},
    {"model": TWO_ENGINES},
    {"dimensions": 8, "embed_batch_size": 2},
    {"additional_kwargs": {"user": "u"}, "max_retries": 10},
]
OWN: list[dict[str, Any]] = [
    {"cls": Same},
    {"reuse_client": False},
    {"max_retries": 0},
    {"embed_batch_size": 1},
    {"additional_kwargs": {"extra_body": object()}},
    {"additional_kwargs": {"encoding_format": "base64"}},
]


@pytest.mark.parametrize("fields", SHARING, ids=str)
def test_an_object_as_its_library_made_it_shares_calls(make: Make, fields: dict[str, Any]) -> None:
    assert calls(make(**fields)) is not None


@pytest.mark.parametrize("fields", OWN, ids=range(len(OWN)))
def test_an_object_with_something_of_the_users_shares_none(
    make: Make, fields: dict[str, Any]
) -> None:
    assert calls(make(**fields)) is None


def test_an_object_with_an_http_client_of_the_users_shares_none(make: Make) -> None:
    with httpx.Client() as client:
        assert calls(make(http_client=client)) is None


async def test_an_object_with_an_async_http_client_of_the_users_shares_none(make: Make) -> None:
    async with httpx.AsyncClient() as client:
        assert calls(make(async_http_client=client)) is None


CHANGES: dict[str, Callable[[OpenAIEmbedding], Any]] = {
    "client": lambda one: setattr(one, "_client", object()),
    "resource": lambda one: vars(one._client).update(embeddings=object()),
    "another's resource": lambda one: vars(one._client).update(
        embeddings=one._client.with_options().embeddings  # type: ignore[union-attr]
    ),
    "async key": lambda one: setattr(one._aclient, "api_key", "another"),
    "create": lambda one: vars(one._client.embeddings).update(create=print),  # type: ignore[union-attr]
    "headers": lambda one: one._client._custom_headers.update(x="y"),  # type: ignore[union-attr]
    "method": lambda one: vars(one).update(_get_query_embedding=print),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_at_the_next_look(plain: OpenAIEmbedding, change: str) -> None:
    assert calls(plain) is not None
    CHANGES[change](plain)
    assert calls(plain) is None


@pytest.mark.parametrize(
    ("owner", "name"),
    [(base, "get_embedding"), (base, "aget_embeddings"), (Embeddings, "create")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_tracers_proxy_is_seen(
    plain: OpenAIEmbedding, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def traced(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return wrapped(*args, **kwargs)

    wrapt = pytest.importorskip("wrapt")
    monkeypatch.setattr(owner, name, wrapt.FunctionWrapper(getattr(owner, name), traced))
    assert calls(plain) is None


def test_a_group_tells_engines_settings_and_keys_apart(plain: OpenAIEmbedding) -> None:
    def group() -> str:
        found = calls(plain)
        assert found is not None
        return found.group

    groups = [group()]
    plain._query_engine = "another"
    groups.append(group())
    plain.additional_kwargs["user"] = "u"
    groups.append(group())
    for client in (plain._client, plain._aclient):
        client.api_key = "another"  # type: ignore[union-attr]
    groups.append(group())
    assert len(set(groups)) == 4


def test_a_call_is_not_sent_with_a_key_that_has_changed_since(plain: OpenAIEmbedding) -> None:
    found = calls(plain)
    assert found is not None
    for client in (plain._client, plain._aclient):
        client.api_key = "another"  # type: ignore[union-attr]
    with pytest.raises(EngineOutputError, match="changed"):
        found.ask(["text"])

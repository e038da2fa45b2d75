"""Texts of concurrent callers of an ``OpenAIEmbeddings`` reach its server in few calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("openai")

import shared_calls_kit
from embeddings_server import EmbeddingsServer, Refusal, vector_of
from neo4j_graphrag.embeddings import AzureOpenAIEmbeddings, OpenAIEmbeddings
from neo4j_graphrag.embeddings.openai import BaseOpenAIEmbeddings
from neo4j_graphrag.exceptions import EmbeddingsGenerationError, RateLimitError
from neo4j_graphrag.utils.rate_limit import (
    NoOpRateLimitHandler,
    RetryRateLimitHandler,
    rate_limit_handler,
)
from ng_kit import outcome, side_by_side
from openai.resources import Embeddings
from openai_http import httpx
from shared_calls_kit import PATIENCE_S, HostedRecognition, SharedCalls
from tenacity import RetryError

import neo4j_graphrag_rag_accel
from neo4j_graphrag_rag_accel import accelerate
from neo4j_graphrag_rag_accel.accelerate import coverage
from rag_accel import Accelerator
from rag_accel_adapters.neo4j_graphrag.models import hosted_calls

TEXTS = [f"text {number}" for number in range(32)]

server, plain, opened = shared_calls_kit.server, shared_calls_kit.plain, shared_calls_kit.opened

Make = Callable[..., OpenAIEmbeddings]


@pytest.fixture
def make(server: EmbeddingsServer, opened: list[Any]) -> Make:
    """Return a maker of embedders on that server."""

    def made(cls: type[OpenAIEmbeddings] = OpenAIEmbeddings, **fields: Any) -> OpenAIEmbeddings:
        given = {"api_key": "k", "max_retries": 1, "timeout": PATIENCE_S, **fields}
        embedder = cls(base_url=server.base_url, **given)
        opened.append(embedder.client)
        return embedder

    return made


class TestSharedCalls(SharedCalls):
    integration, coverage = neo4j_graphrag_rag_accel, staticmethod(coverage)
    clients = ("client",)
    bad_text, too_often = EmbeddingsGenerationError, RateLimitError
    first_refused = ()  # calls on a loop block it: it is a shared call, after which each asks
    trying, tries = {"rate_limit_handler": NoOpRateLimitHandler()}, 2
    texts = TEXTS

    def embed(self, plain: OpenAIEmbeddings, text: str) -> list[float]:
        return plain.embed_query(text)

    async def aembed(self, plain: OpenAIEmbeddings, text: str) -> list[float]:
        return await plain.async_embed_query(text)


@pytest.mark.parametrize("text", ["", None, 5, ["a"]], ids=str)
def test_what_is_no_text_is_answered_as_plainly(
    text: Any, server: EmbeddingsServer, plain: OpenAIEmbeddings, accelerator: Accelerator
) -> None:
    server.bad = {""}
    fast = accelerate(plain, accelerator=accelerator)
    assert outcome(lambda: fast.embed_query(text)) == outcome(lambda: plain.embed_query(text))


def test_arguments_of_the_call_are_sent_as_plainly(
    server: EmbeddingsServer, plain: OpenAIEmbeddings, accelerator: Accelerator
) -> None:
    fast = accelerate(plain, accelerator=accelerator)
    assert fast.embed_query("a", user="u") == vector_of("a")
    assert [one.user for one in server.heard] == ["u"]


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_refusal_that_stays_is_tried_as_often_as_plainly(
    attempts: int, server: EmbeddingsServer, make: Make, accelerator: Accelerator
) -> None:
    handler = RetryRateLimitHandler(attempts, min_wait=0, max_wait=0)
    plain = make(rate_limit_handler=handler, max_retries=2)
    server.refusals.extend([Refusal(429, "0.01")] * 100)
    raised, tried = list[str](), list[int]()
    for embedder in (plain, accelerate(plain, accelerator=accelerator)):
        server.calls.clear()
        with pytest.raises(RetryError) as caught:
            embedder.embed_query("a")
        raised.append(repr(caught.value.last_attempt.exception()))
        tried.append(len(server.calls))
    assert raised[0] == raised[1]
    assert tried == [3 * attempts] * 2


def test_a_server_that_is_gone_is_the_embedders_own_error(
    server: EmbeddingsServer, plain: OpenAIEmbeddings, accelerator: Accelerator
) -> None:
    plain.client.base_url = "http://127.0.0.1:9/v1/"  # nothing listens there
    expected = outcome(lambda: plain.embed_query("a"))
    fast = accelerate(plain, accelerator=accelerator)
    assert side_by_side(fast.embed_query, ["a", "b"]) == [expected] * 2
    assert expected[0] is EmbeddingsGenerationError


class Same(OpenAIEmbeddings):
    """A subclass that changes nothing."""


class OwnHandler(RetryRateLimitHandler):
    """A handler of a user's, which may look at who calls."""


class TestRecognition(HostedRecognition):
    hosted_calls, clients = staticmethod(hosted_calls), ("client",)
    shared = (
        {},
        {"default_headers": {"x": "y"}},
        {"model": "text-embedding-3-large", "max_retries": 5, "organization": "o"},
        {"rate_limit_handler": NoOpRateLimitHandler()},
        {"rate_limit_handler": RetryRateLimitHandler(max_attempts=7)},
        {"cls": AzureOpenAIEmbeddings, "api_version": "2024-02-01"},
    )
    refused = (
        ({"cls": Same}, "Same is a class of the program's"),
        ({"max_retries": 0}, "max_retries=0"),
        ({"rate_limit_handler": OwnHandler()}, "rate_limit_handler is a .*OwnHandler"),
        ({"api_key": lambda: "k"}, "api_key_provider may give each caller another key"),
        ({"http_client": httpx.Client(event_hooks={"request": [print]})}, "a hook in event_hooks"),
    )
    changes = {
        "client": lambda one: setattr(one, "client", object()),
        "another's resource": lambda one: vars(one.client).update(
            embeddings=one.client.with_options().embeddings
        ),
        "create": lambda one: vars(one.client.embeddings).update(create=print),
        "header": lambda one: one.client._custom_headers.update(x=object()),
        "method": lambda one: vars(one).update(embed_query=print),
        "model": lambda one: setattr(one, "model", None),
        "handler": lambda one: setattr(one, "_rate_limit_handler", OwnHandler()),
        "attribute": lambda one: setattr(one, "other", 1),
    }
    settings = (lambda one: setattr(one, "model", "another"),)
    functions = ((OpenAIEmbeddings, "embed_query"), (Embeddings, "create"))


def _around(func: Any) -> Any:
    """Return a function whose code fits into that of a decorator's."""

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return func(self, *args, **kwargs)

    return wrapper


@pytest.mark.parametrize("looked_at", [True, False])
@pytest.mark.parametrize("attribute", ["__code__", "cell", "__wrapped__ kept"])
def test_a_decorator_that_was_changed_in_place_is_seen(
    attribute: str, looked_at: bool, plain: OpenAIEmbeddings, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = TestRecognition().shares
    around: Any = OpenAIEmbeddings.embed_query
    if looked_at:
        assert shares(plain)
    if attribute == "__code__":
        monkeypatch.setattr(around, "__code__", _around(None).__code__)
    elif attribute == "cell":
        monkeypatch.setattr(around.__closure__[0], "cell_contents", lambda *_, **__: [1.0])
    else:
        foreign: Any = rate_limit_handler(lambda *_, **__: [1.0])
        foreign.__wrapped__ = around.__wrapped__
        monkeypatch.setattr(BaseOpenAIEmbeddings, "embed_query", foreign)
    assert not shares(plain)
    monkeypatch.undo()
    assert shares(plain)

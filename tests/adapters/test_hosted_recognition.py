"""Which hosted embeddings may share calls: those in which nothing can differ between callers."""

from __future__ import annotations

import functools
import logging
from collections import UserDict
from collections.abc import Callable
from typing import Any

import openai
import pytest
import shared_calls_kit
from langchain_openai import AzureOpenAIEmbeddings, OpenAIEmbeddings
from openai.resources.embeddings import AsyncEmbeddings, Embeddings
from openai_http import httpx
from shared_calls_kit import Change, HostedRecognition

from rag_accel_adapters.langchain.models import hosted_calls

plain = shared_calls_kit.plain

URL = "http://127.0.0.1:1"
AZURE = {"cls": AzureOpenAIEmbeddings, "azure_endpoint": URL, "azure_deployment": "d"}


def made(cls: type[OpenAIEmbeddings] = OpenAIEmbeddings, **fields: Any) -> OpenAIEmbeddings:
    """Return embeddings as a program makes them."""
    given = {} if cls is AzureOpenAIEmbeddings else {"model": "m", "base_url": f"{URL}/v1"}
    return cls(**given, **{"api_key": "k", **fields})


@pytest.fixture
def make() -> Callable[..., OpenAIEmbeddings]:
    return made


class Same(OpenAIEmbeddings):
    """A subclass that changes nothing."""


async def a_token() -> str:
    """Return a token on a loop."""
    return "t"


class Gateway(openai.OpenAI):
    """A client that may add who calls."""


def _hooked(request: Any) -> None:
    """Do nothing, as a hook that might look at who calls."""


def _set(path: str, value: Any) -> Change:
    *names, last = path.split(".")

    def change(embeddings: OpenAIEmbeddings) -> None:
        target: Any = functools.reduce(getattr, names, embeddings)
        target.__dict__[last] = value

    return change


HTTP = "client._client._client"


def _http(embeddings: OpenAIEmbeddings) -> Any:
    return embeddings.client._client._client


class TestRecognition(HostedRecognition):
    hosted_calls, clients = staticmethod(hosted_calls), ("client", "async_client")
    shared = (
        {},
        AZURE,
        {"model_kwargs": {"user": "u", "extra_body": {"a": [1, 2.0, None]}}},
        {"dimensions": 3, "timeout": 1.0, "organization": "o", "chunk_size": 2},
        {"timeout": httpx.Timeout(3.0)},
        {"default_headers": {"x": "y"}},
        {"default_query": {"x": "y"}},
        {"http_client": httpx.Client(), "http_async_client": httpx.AsyncClient()},
        {"http_client": httpx.Client()},
        {**AZURE, "azure_ad_token": "t"},
    )
    refused = (
        ({"cls": Same}, "Same is a class of the program's"),
        ({"client": Gateway(api_key="k").embeddings}, "Gateway"),
        ({"api_key": lambda: "k"}, "api_key is a function"),
        ({"api_key": a_token}, "api_key is a function"),
        (
            {"http_client": httpx.Client(event_hooks={"request": [_hooked]})},
            "a hook in event_hooks of http_client is a function of .*test_hosted_recog",
        ),
        ({"http_client": httpx.Client(auth=("a", "b"))}, "http_client has an auth"),
        ({"http_client": httpx.Client(headers={"x": "y"})}, "the async client sends otherwise"),
        ({"http_async_client": httpx.AsyncClient(verify=False)}, "the async client sends otherw"),
        ({"http_client": httpx.Client(transport=httpx.MockTransport(print))}, "MockTransport"),
        ({"max_retries": 0}, "max_retries=0"),
        ({"chunk_size": 1}, "chunk_size"),
        ({"model_kwargs": {"extra_body": object()}}, "model_kwargs holds what is no plain data"),
        ({"model_kwargs": {"extra_body": functools.partial(dict)}}, "model_kwargs"),
        ({**AZURE, "azure_ad_token_provider": lambda: "t"}, "azure_ad_token_provider"),
        (
            {
                **AZURE,
                "azure_ad_token_provider": lambda: "t",
                "azure_ad_async_token_provider": a_token,
            },
            "azure_ad_async_token_provider",
        ),
    )
    changes = {
        "method on the object": _set("embed_documents", lambda texts: []),
        "client": lambda one: setattr(one, "client", object()),
        "create": _set("client.create", lambda **kwargs: None),
        "async create": _set("async_client.create", lambda **kwargs: None),
        "post": _set("client._post", lambda *args, **kwargs: None),
        "request": _set("client._client.request", lambda *args, **kwargs: None),
        "key provider": _set("client._client._api_key_provider", lambda: "k"),
        "headers": lambda one: one.client._client._custom_headers.update(x="y"),
        "live headers": lambda one: [
            vars(resource._client).update(_custom_headers=UserDict())
            for resource in (one.client, one.async_client)
        ],
        "send": _set(f"{HTTP}.send", lambda request, **kwargs: None),
        "http headers": lambda one: _http(one).headers.update({"x-tenant": "t"}),
        "http auth": lambda one: setattr(_http(one), "auth", ("a", "b")),
        "http params": lambda one: setattr(_http(one), "params", {"a": "b"}),
        "hook": lambda one: _http(one).event_hooks["request"].append(print),
        "transport": _set(f"{HTTP}._transport", httpx.MockTransport(print)),
        "mount": lambda one: _http(one)._mounts.update({"x": httpx.MockTransport(print)}),
        "handler": _set(f"{HTTP}._transport.handle_request", lambda request: None),
        "pool": _set(f"{HTTP}._transport._pool.handle_request", lambda request: None),
        "another async key": _set("async_client._client.api_key", "another"),
        "another async address": lambda one: setattr(
            one.async_client._client, "base_url", "http://127.0.0.1:2"
        ),
    }
    settings = (
        lambda one: setattr(one, "model_kwargs", {"user": "u"}),
        lambda one: setattr(one, "model_kwargs", {"user": "v"}),
    )
    functions = (
        (Embeddings, "create"),
        (AsyncEmbeddings, "create"),
        (httpx.Client, "send"),
        (httpx.AsyncClient, "send"),
    )

    def test_a_property_of_the_class_that_is_replaced_is_seen(
        self, plain: OpenAIEmbeddings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.shares(plain)
        monkeypatch.setattr(OpenAIEmbeddings, "_invocation_params", property(lambda _: {}))
        assert not self.shares(plain)

    def test_a_method_whose_code_is_replaced_is_seen(
        self, plain: OpenAIEmbeddings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def create(self: Any, **kwargs: Any) -> None:
            """Do nothing."""

        assert self.shares(plain)
        monkeypatch.setattr(Embeddings.create, "__code__", create.__code__)
        assert not self.shares(plain)

    def test_nothing_is_shared_while_a_client_may_log_what_it_sends(
        self, plain: OpenAIEmbeddings, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert self.shares(plain)
        with caplog.at_level(logging.DEBUG, "openai._base_client"):
            assert not self.shares(plain)

    def test_equal_settings_of_one_client_are_one_group(self) -> None:
        embeddings = made(model_kwargs={"user": "u"})
        copied = embeddings.model_copy()
        copied.model_kwargs = {"user": "u"}
        assert self.calls(copied).group == self.calls(embeddings).group

    def test_objects_that_send_by_one_http_client_are_one_group(self) -> None:
        client, another = httpx.Client(), httpx.Client()
        groups = [self.calls(made(http_client=http)).group for http in (client, client, another)]
        assert groups[0] == groups[1] != groups[2]

    def test_a_caller_that_asks_alone_has_one_retry_fewer(self) -> None:
        embeddings = made(max_retries=2)
        alone = self.calls(embeddings).alone(1)
        assert alone.client._client.max_retries == alone.async_client._client.max_retries == 1
        assert alone.client._client._client is embeddings.client._client._client
        assert embeddings.client._client.max_retries == 2

"""Which hosted embeddings may share calls: those in which nothing can differ between callers."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import pytest
from langchain_openai import AzureOpenAIEmbeddings, OpenAIEmbeddings
from openai.resources.embeddings import Embeddings
from openai_http import httpx

from rag_accel.errors import EngineOutputError
from rag_accel.recognition.known_classes import NotAdoptedError
from rag_accel_adapters.langchain.hosted import HostedCalls, hosted_calls

URL = "http://127.0.0.1:1/v1"


def method(cls: type, name: str) -> Any:
    """Return a class's method; none is replaced by ours here."""
    return getattr(cls, name, None)


def make(cls: type[OpenAIEmbeddings] = OpenAIEmbeddings, **fields: Any) -> OpenAIEmbeddings:
    """Return embeddings as a program makes them."""
    given: dict[str, Any] = {"model": "m", "base_url": URL, "api_key": "k", **fields}
    return cls(**given)


def azure(**fields: Any) -> OpenAIEmbeddings:
    """Return embeddings of Azure's as a program makes them."""
    given: dict[str, Any] = {"azure_endpoint": "http://127.0.0.1:1", "azure_deployment": "d"}
    return AzureOpenAIEmbeddings(**given, **{"api_key": "k", **fields})


def calls(embeddings: OpenAIEmbeddings) -> HostedCalls | None:
    """Return how an object asks, if its calls may be shared."""
    try:
        return hosted_calls(embeddings, type(embeddings), method)
    except NotAdoptedError:
        return None


def group(embeddings: OpenAIEmbeddings) -> str:
    """Return what must be equal for calls to be shared."""
    found = calls(embeddings)
    assert found is not None
    return found.group


@pytest.mark.parametrize(
    "embeddings",
    [
        make(),
        azure(),
        make(model_kwargs={"user": "u", "extra_body": {"a": [1, 2.0, None]}}),
        make(dimensions=3, timeout=1.0, organization="o", chunk_size=2),
        make(timeout=httpx.Timeout(3.0)),
        make(default_headers={"x": "y"}),
        make(default_query={"x": "y"}),
        make(http_client=httpx.Client(), http_async_client=httpx.AsyncClient()),
        make(http_client=httpx.Client()),
        azure(azure_ad_token="t"),
    ],
)
def test_an_object_whose_settings_are_data_shares_calls(embeddings: OpenAIEmbeddings) -> None:
    assert calls(embeddings) is not None


class Same(OpenAIEmbeddings):
    """A subclass that changes nothing."""


async def a_token() -> str:
    """Return a token on a loop."""
    return "t"


def _hooked(request: Any) -> None:
    """Do nothing, as a hook that might look at who calls."""


REFUSED: list[tuple[OpenAIEmbeddings, str]] = [
    (make(Same), "Same is a class of the program's"),
    (make(api_key=lambda: "k"), "api_key is a function"),
    (make(api_key=a_token), "api_key is a function"),
    (make(http_client=httpx.Client(event_hooks={"request": [_hooked]})), "test_hosted_recog"),
    (make(http_client=httpx.Client(auth=("a", "b"))), "http_client has an auth"),
    (make(http_client=httpx.Client(headers={"x": "y"})), "the async client sends otherwise"),
    (make(http_async_client=httpx.AsyncClient(verify=False)), "the async client sends otherwise"),
    (make(http_client=httpx.Client(transport=httpx.MockTransport(print))), "MockTransport"),  # type: ignore[arg-type]
    (make(max_retries=0), "max_retries=0"),
    (make(chunk_size=1), "chunk_size"),
    (make(model_kwargs={"extra_body": object()}), "model_kwargs holds what is no plain data"),
    (make(model_kwargs={"extra_body": functools.partial(dict)}), "model_kwargs"),
    (azure(azure_ad_token_provider=lambda: "t"), "azure_ad_token_provider"),
    (
        azure(azure_ad_token_provider=lambda: "t", azure_ad_async_token_provider=a_token),
        "azure_ad_async_token_provider",
    ),
]


@pytest.mark.parametrize(("embeddings", "why"), REFUSED, ids=[why for _, why in REFUSED])
def test_an_object_with_something_of_the_users_shares_none(
    embeddings: OpenAIEmbeddings, why: str
) -> None:
    with pytest.raises(NotAdoptedError, match=why):
        hosted_calls(embeddings, type(embeddings), method)


def _set(path: str, value: Any) -> Callable[[OpenAIEmbeddings], None]:
    *names, last = path.split(".")

    def change(embeddings: OpenAIEmbeddings) -> None:
        target: Any = functools.reduce(getattr, names, embeddings)
        target.__dict__[last] = value

    return change


HTTP = "client._client._client"

CHANGES: dict[str, Callable[[OpenAIEmbeddings], Any]] = {
    "method on the object": _set("embed_documents", lambda texts: []),
    "create": _set("client.create", lambda **kwargs: None),
    "async create": _set("async_client.create", lambda **kwargs: None),
    "post": _set("client._post", lambda *args, **kwargs: None),
    "request": _set("client._client.request", lambda *args, **kwargs: None),
    "key provider": _set("client._client._api_key_provider", lambda: "k"),
    "headers": lambda one: one.client._client._custom_headers.update(x="y"),
    "send": _set(f"{HTTP}.send", lambda request, **kwargs: None),
    "http headers": lambda one: one.client._client._client.headers.update({"x-tenant": "t"}),
    "http auth": lambda one: setattr(one.client._client._client, "auth", ("a", "b")),
    "http params": lambda one: setattr(one.client._client._client, "params", {"a": "b"}),
    "hook": lambda one: one.client._client._client.event_hooks["request"].append(print),
    "transport": _set(f"{HTTP}._transport", httpx.MockTransport(lambda request: None)),  # type: ignore[arg-type,return-value]
    "mount": lambda one: one.client._client._client._mounts.update(
        {"x": httpx.MockTransport(lambda request: None)}  # type: ignore[arg-type,return-value]
    ),
    "handler": _set(f"{HTTP}._transport.handle_request", lambda request: None),
    "pool": _set(f"{HTTP}._transport._pool.handle_request", lambda request: None),
    "another async key": _set("async_client._client.api_key", "another"),
    "another async address": lambda one: setattr(
        one.async_client._client, "base_url", "http://127.0.0.1:2"
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen_at_the_next_look(name: str) -> None:
    embeddings = make()
    assert calls(embeddings) is not None
    CHANGES[name](embeddings)
    assert calls(embeddings) is None


class EqualProxy:
    """A callable that says it equals the function it stands for, as tracers' proxies do."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __eq__(self, other: object) -> bool:
        return bool(self.function == other)

    def __hash__(self) -> int:
        return hash(self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@pytest.mark.parametrize("stand_in", [EqualProxy, functools.partial])
def test_a_stand_in_for_a_method_of_a_class_is_seen(
    stand_in: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    embeddings = make()
    assert calls(embeddings) is not None
    with monkeypatch.context() as patch:
        patch.setattr(Embeddings, "create", stand_in(Embeddings.create))
        assert calls(embeddings) is None
    assert calls(embeddings) is not None


def test_a_tracers_proxy_of_a_method_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def traced(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return wrapped(*args, **kwargs)

    wrapt = pytest.importorskip("wrapt")
    embeddings = make()
    assert calls(embeddings) is not None
    monkeypatch.setattr(Embeddings, "create", wrapt.FunctionWrapper(Embeddings.create, traced))
    assert calls(embeddings) is None


def test_a_method_whose_code_is_replaced_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(self: Any, **kwargs: Any) -> None:
        """Do nothing."""

    embeddings = make()
    assert calls(embeddings) is not None
    monkeypatch.setattr(Embeddings.create, "__code__", create.__code__)
    assert calls(embeddings) is None


def test_nothing_is_shared_while_a_client_may_log_what_it_sends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    embeddings = make()
    assert calls(embeddings) is not None
    with caplog.at_level(logging.DEBUG, "openai._base_client"):
        assert calls(embeddings) is None


def test_equal_settings_of_one_client_are_one_group() -> None:
    embeddings = make(model_kwargs={"user": "u"})
    copied = embeddings.model_copy()
    assert group(copied) == group(embeddings)
    copied.model_kwargs = {"user": "u"}
    assert group(copied) == group(embeddings)
    copied.model_kwargs = {"user": "v"}
    assert group(copied) != group(embeddings)


def test_objects_that_send_by_one_http_client_are_one_group() -> None:
    client, another = httpx.Client(), httpx.Client()
    assert group(make(http_client=client)) == group(make(http_client=client))
    assert group(make(http_client=client)) != group(make(http_client=another))


def test_a_group_tells_keys_apart_and_does_not_hold_them() -> None:
    embeddings = make(api_key="sk-secret")
    before = group(embeddings)
    for resource in (embeddings.client, embeddings.async_client):
        resource._client.api_key = "sk-other"
    assert group(embeddings) != before
    assert "secret" not in before


def test_a_call_is_not_sent_with_a_key_that_has_changed_since() -> None:
    embeddings = make(check_embedding_ctx_length=False)
    found = calls(embeddings)
    assert found is not None
    for resource in (embeddings.client, embeddings.async_client):
        resource._client.api_key = "another"
    with pytest.raises(EngineOutputError, match="changed"):
        found.ask(["text"])


def test_a_caller_that_asks_alone_has_one_retry_fewer() -> None:
    embeddings = make(max_retries=2)
    found = calls(embeddings)
    assert found is not None
    alone = found.alone(1)
    assert alone.client._client.max_retries == alone.async_client._client.max_retries == 1
    assert alone.client._client._client is embeddings.client._client._client
    assert embeddings.client._client.max_retries == 2

"""Embeddings classes of clients that send a list in one HTTP call: Ollama, and TEI's two."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import httpx
import huggingface_hub
import ollama
import pytest
from aiohttp import web
from embeddings_server import EmbeddingsServer, Heard, Refusal, vector_of
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError
from langchain_huggingface import HuggingFaceEndpointEmbeddings
from langchain_ollama import OllamaEmbeddings
from llama_index.embeddings.ollama import OllamaEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference

import langchain_rag_accel
import llama_index_rag_accel
from rag_accel import Accelerator
from rag_accel.adoption.embeddings import KnownEmbeddings
from rag_accel.engines.http.endpoints import EndpointGate, Endpoints
from rag_accel_adapters.langchain import models as langchain_models
from rag_accel_adapters.llama_index import models as llama_index_models

TEXTS = [f"text {number}" for number in range(64)]
Make = Callable[..., Any]


class HttpServer(EmbeddingsServer):
    """Answer as Ollama does, and as TEI does.

    Attributes:
        bodies: each call without its texts.
        pages: each call's path.
        refuses_lists: calls of several texts are refused.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[dict[str, Any]] = []
        self.pages: list[str] = []
        self.refuses_lists = False

    @property
    def url(self) -> str:
        """The address below which everything is answered."""
        return self.base_url.removesuffix("/v1")

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Answer both protocols, Ollama's at ``/api/embed``."""
        router.add_post("/{page:.*}", self._answer_list)

    async def _answer_list(self, request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        is_ollama = request.path.endswith("/api/embed")
        given = body.pop("input" if is_ollama else "inputs")
        texts = [given] if isinstance(given, str) else given
        self.calls.append(texts)
        self.bodies.append(body)
        self.pages.append(request.path)
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        self.heard.append(Heard(tuple(texts), key, request.headers.get("x-tenant", ""), ""))
        if self.refusals or (self.refuses_lists and len(texts) > 1):
            status = self.refusals.popleft().status if self.refusals else 429
            told = {"error": "Model is overloaded", "error_type": "overloaded"}
            return web.json_response(told, status=status)
        if bad := self.bad & set(texts):
            return web.json_response({"error": f"bad: {bad}"}, status=400)
        vectors = [self.vector(text) for text in texts]
        return web.json_response({"model": "m", "embeddings": vectors} if is_ollama else vectors)


@pytest.fixture
def server() -> Iterator[HttpServer]:
    """Yield a loopback server of both protocols."""
    with HttpServer() as made:
        yield made


def _lc_ollama(url: str, key: str = "k", **fields: Any) -> OllamaEmbeddings:
    headers = {"Authorization": f"Bearer {key}"}
    given = {"model": "m", "client_kwargs": {"headers": headers}, **fields}
    return OllamaEmbeddings(base_url=url, **given)


def _li_ollama(url: str, key: str = "k", **fields: Any) -> OllamaEmbedding:
    headers = {"Authorization": f"Bearer {key}"}
    given = {"client_kwargs": {"headers": headers}, "embed_batch_size": 32, **fields}
    return OllamaEmbedding("m", base_url=url, **given)


def _lc_tei(url: str, key: str = "k", **fields: Any) -> HuggingFaceEndpointEmbeddings:
    made = HuggingFaceEndpointEmbeddings(
        model="m", huggingfacehub_api_token=key, provider="hf-inference", **fields
    )
    # The class takes no address; its clients do.
    made.client.model = made.async_client.model = url
    return made


def _li_tei(url: str, key: str = "k", **fields: Any) -> TextEmbeddingsInference:
    given = {"model_name": "m", "embed_batch_size": 32, **fields}
    return TextEmbeddingsInference(base_url=url, auth_token=key, **given)


@dataclass(frozen=True)
class Case:
    """A class: how it is made, what replaces its client's method, and what it raises.

    Args:
        integration: of its framework.
        make: makes an object, given an address and a key.
        error: what it raises where the server refuses a text or a call.
        other: arguments that its calls tell its server, or by which it prepares texts.
        refused: arguments with which nothing is shared, and the reason.
        changes: of an object after which nothing is shared, and the reason.
    """

    integration: ModuleType
    make: Callable[..., Any]
    error: type[Exception]
    other: dict[str, Any]
    refused: tuple[tuple[dict[str, Any], str], ...]
    changes: tuple[tuple[Callable[[Any], Any], str], ...]

    def accelerate(self, plain: Any, accelerator: Accelerator) -> Any:
        return self.integration.accelerate(plain, accelerator=accelerator)

    @property
    def is_langchain(self) -> bool:
        return self.integration is langchain_rag_accel

    @property
    def known(self) -> KnownEmbeddings:
        return (langchain_models if self.is_langchain else llama_index_models).EMBEDDINGS

    async def embed(self, obj: Any, texts: Iterable[str]) -> list[Any]:
        """Return the vectors or errors of queries, each asked in a task."""
        ask = obj.aembed_query if self.is_langchain else obj.aget_query_embedding
        return await asyncio.gather(*map(ask, texts), return_exceptions=True)

    async def embed_blocking(self, obj: Any) -> Any:
        """Return the vector or error of a query that is asked in a thread."""
        ask = obj.embed_query if self.is_langchain else obj.get_query_embedding
        asking = asyncio.to_thread(ask, "a")
        return (await asyncio.gather(asking, return_exceptions=True))[0]

    async def embed_documents(self, obj: Any, texts: list[str]) -> list[Any]:
        """Return the vectors of documents."""
        ask = obj.aembed_documents if self.is_langchain else obj.aget_text_embedding_batch
        return await ask(texts)


HOOKED = ({"client_kwargs": {"event_hooks": {"request": [print]}}}, "a hook in event_hooks")
#: attributes that hold clients
CLIENTS = ("_async_client", "_client", "async_client", "client")
OLLAMA_CHANGES = (
    (lambda obj: vars(obj._client).update(embed=print), "Client.embed is replaced on it"),
    (lambda obj: setattr(obj, "_client", object()), "its client is a builtins.object"),
    (
        lambda obj: obj._client._client.headers.update({"x": "y"}),
        "async client sends otherwise",
    ),
    (lambda obj: setattr(obj._client._client, "timeout", 3.0), "async client sends otherwise"),
)
CASES = {
    "langchain-ollama": Case(
        langchain_rag_accel,
        _lc_ollama,
        ollama.ResponseError,
        {"dimensions": 8, "num_ctx": 64, "keep_alive": 3},
        (
            HOOKED,
            ({"client_kwargs": {"auth": ("a", "b")}}, "auth of its own"),
            ({"async_client_kwargs": {"headers": {"x": "y"}}}, "async client sends otherwise"),
            ({"sync_client_kwargs": {"transport": httpx.MockTransport(print)}}, "async client se"),
        ),
        OLLAMA_CHANGES,
    ),
    "llama-index-ollama": Case(
        llama_index_rag_accel,
        _li_ollama,
        ollama.ResponseError,
        {
            "keep_alive": "3m",
            "query_instruction": "find: ",
            "text_instruction": "keep: ",
            "ollama_additional_kwargs": {"num_ctx": 64},
        },
        (
            HOOKED,
            ({"embed_batch_size": 1}, "embed_batch_size lets no texts"),
            ({"ollama_additional_kwargs": {"a": object()}}, "holds what is no plain data"),
        ),
        OLLAMA_CHANGES,
    ),
    "langchain-tei": Case(
        langchain_rag_accel,
        _lc_tei,
        HfHubHTTPError,
        {"model_kwargs": {"normalize": True, "prompt_name": "query"}},
        (({"model_kwargs": {"truncate": object()}}, "model_kwargs holds what is no plain data"),),
        (
            (
                lambda obj: vars(obj.client).update(feature_extraction=print),
                "feature_extraction is replaced on it",
            ),
            (lambda obj: setattr(obj, "client", object()), "its client is a builtins.object"),
            (lambda obj: obj.client.headers.update(x="y"), "async client sends otherwise"),
            (lambda obj: setattr(obj.client, "cookies", object()), "cookies holds what is no"),
        ),
    ),
    "llama-index-tei": Case(
        llama_index_rag_accel,
        _li_tei,
        KeyError,
        {"model_name": "BAAI/bge-small-en", "truncate_text": False, "endpoint": "/elsewhere"},
        (({"embed_batch_size": 1}, "embed_batch_size lets no texts"),),
        (
            (lambda obj: vars(obj).update(_call_api=print), "_call_api is set on the object"),
            (lambda obj: setattr(obj, "auth_token", len), "auth_token holds what is no plain"),
        ),
    ),
}


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    """Yield an accelerator that raises its own errors."""
    with Accelerator(strict=True) as made:
        yield made


@pytest.fixture(params=CASES.values(), ids=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
async def make(case: Case, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """Yield a maker of objects, whose connections end with the test."""
    # Its hook refuses to send, also to this machine.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    clients: list[Any] = []

    def made(*args: Any, **fields: Any) -> Any:
        obj = case.make(*args, **fields)
        private = obj.__pydantic_private__ or {}
        clients.extend({**vars(obj), **private}.get(name) for name in CLIENTS)
        return obj

    yield made
    for client in filter(None, clients):
        closing = client.close()
        if closing is not None:
            await closing
    huggingface_hub.close_session()


async def test_tasks_share_calls_and_have_the_vectors_of_the_plain_object(
    case: Case, make: Make, server: HttpServer, accelerator: Accelerator
) -> None:
    plain = make(server.url)
    expected = await case.embed(plain, TEXTS)
    server.calls.clear()
    assert await case.embed(case.accelerate(plain, accelerator), TEXTS) == expected
    assert expected == [vector_of(text) for text in TEXTS]
    assert len(server.calls) <= 8


async def test_calls_say_what_those_of_the_plain_object_say(
    case: Case, make: Make, server: HttpServer, accelerator: Accelerator
) -> None:
    plain = make(server.url, **case.other)
    fast = case.accelerate(plain, accelerator)

    async def asked(obj: Any) -> tuple[list[Any], list[list[Any]]]:
        server.calls.clear()
        server.bodies.clear()
        server.pages.clear()
        texts = [f" {text} " for text in TEXTS[:16]]
        documents = [f"document\n{number} " for number in range(4)]
        vectors = [await case.embed(obj, texts), await case.embed_documents(obj, documents)]
        told = [(page, body) for page, body in zip(server.pages, server.bodies, strict=True)]
        sent = sorted(text for texts in server.calls for text in texts)
        return vectors, [sent, [one for at, one in enumerate(told) if one not in told[:at]]]

    expected = await asked(plain)
    assert await asked(fast) == expected
    assert len(server.calls) <= 6


async def test_keys_and_addresses_share_no_call(
    case: Case, make: Make, server: HttpServer, accelerator: Accelerator
) -> None:
    with HttpServer() as another:
        plain = [make(server.url, key) for key in ("anna", "bert")]
        plain.append(make(another.url, "anna"))
        fast = [case.accelerate(obj, accelerator) for obj in plain]
        asking = (case.embed(obj, TEXTS[:8]) for obj in fast)
        found = await asyncio.gather(*asking)
    assert found == [[vector_of(text) for text in TEXTS[:8]]] * 3
    heard = [(call.key, text) for call in server.heard for text in call.texts]
    assert sorted(heard) == sorted((key, text) for key in ("anna", "bert") for text in TEXTS[:8])
    assert {call.key for call in another.heard} == {"anna"}


async def test_an_error_is_the_classs_own_and_of_its_caller(
    case: Case, make: Make, server: HttpServer, accelerator: Accelerator
) -> None:
    server.bad = {TEXTS[5]}
    fast = case.accelerate(make(server.url), accelerator)
    found = dict(zip(TEXTS, await case.embed(fast, TEXTS), strict=True))
    assert isinstance(found.pop(TEXTS[5]), case.error)
    assert found == {text: vector_of(text) for text in TEXTS if text != TEXTS[5]}


async def test_a_refused_shared_call_is_asked_again_by_each(
    case: Case, make: Make, server: HttpServer, accelerator: Accelerator
) -> None:
    fast = case.accelerate(make(server.url), accelerator)
    server.refuses_lists = True
    found = await case.embed(fast, TEXTS[:8])
    assert found == [vector_of(text) for text in TEXTS[:8]]
    assert max(map(len, server.calls)) > 1


async def test_a_blank_text_is_asked_alone(
    case: Case, make: Make, server: HttpServer, accelerator: Accelerator
) -> None:
    plain = make(server.url)
    await case.embed(case.accelerate(plain, accelerator), [*TEXTS[:8], " "])
    assert [texts for texts in server.calls if not all(map(str.strip, texts))] in (
        [[" "]],
        [[""]],
    )


async def test_a_refusal_limits_the_endpoint(case: Case, make: Make, server: HttpServer) -> None:
    gate = EndpointGate(endpoints=Endpoints())
    for key, is_blocking in (("anna", False), ("bert", True)):
        obj = make(server.url, key)
        limited = case.known.limited(obj, type(obj), gate)
        server.refusals.extend([Refusal(429)])
        for kind in (case.error, list):
            one = await (case.embed_blocking(limited) if is_blocking else case.embed(limited, "a"))
            assert isinstance(one if is_blocking else one[0], kind)
    bounds = [endpoint.limit.bound for endpoint in gate.endpoints._endpoints.values()]
    assert len(bounds) == 2
    assert None not in bounds


async def test_an_object_with_something_of_the_programs_asks_alone(
    case: Case, make: Make, server: HttpServer, accelerator: Accelerator
) -> None:
    async def answer(obj: Any) -> Any:
        found = await case.embed_blocking(obj)
        return (type(found), str(found)) if isinstance(found, Exception) else found

    for fields, why in case.refused:
        made = make(server.url, **fields)
        assert why in case.integration.explain(case.accelerate(made, accelerator))
    for change, why in case.changes:
        made = make(server.url)
        assert "share its calls" in case.integration.explain(case.accelerate(made, accelerator))
        change(made)
        fast = case.accelerate(made, accelerator)
        assert why in case.integration.explain(fast)
        assert await answer(fast) == await answer(made)


def test_nothing_is_shared_while_the_hub_logs_what_it_sends(
    monkeypatch: pytest.MonkeyPatch, accelerator: Accelerator
) -> None:
    plain = _lc_tei("http://127.0.0.1:1")
    monkeypatch.setattr(constants, "HF_DEBUG", True)
    fast = langchain_rag_accel.accelerate(plain, accelerator=accelerator)
    assert "huggingface_hub logs all that is sent" in langchain_rag_accel.explain(fast)


async def test_objects_of_both_frameworks_wait_at_one_endpoint(server: HttpServer) -> None:
    gate = EndpointGate(endpoints=Endpoints())
    for name in ("langchain-ollama", "llama-index-ollama"):
        obj = CASES[name].make(server.url)
        limited = CASES[name].known.limited(obj, type(obj), gate)
        assert await CASES[name].embed_blocking(limited) == vector_of("a")
        obj._client.close()
    assert len(gate.endpoints) == 1

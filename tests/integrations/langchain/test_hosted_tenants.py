"""Callers of one hosted embeddings object keep their identity, their errors and their pace."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from embeddings_server import EmbeddingsServer, Heard, Refusal, vector_of
from langchain_openai import OpenAIEmbeddings
from openai.resources.embeddings import AsyncEmbeddings, Embeddings
from openai_http import httpx

from langchain_rag_accel import activate
from rag_accel import Accelerator

#: bounds a hang; nothing is measured
PATIENCE_S = 20.0
NUM_CALLERS = 32
TENANTS = ("anna", "bert", "carl", "dora")
tenant: ContextVar[str] = ContextVar("tenant", default="none")

TEXTS = [f"{TENANTS[number % 4]} asks {number}" for number in range(NUM_CALLERS)]


@pytest.fixture
def server() -> Iterator[EmbeddingsServer]:
    with EmbeddingsServer() as made:
        yield made


class Opened:
    """What a test opens and has to close; a socket that is collected open warns."""

    def __init__(self, server: EmbeddingsServer) -> None:
        self.server = server
        self.objects: list[Any] = []

    def embeddings(
        self, cls: type[OpenAIEmbeddings] = OpenAIEmbeddings, **fields: Any
    ) -> OpenAIEmbeddings:
        """Return embeddings on the server, whose clients LangChain makes."""
        given = {"api_key": "k", "max_retries": 1, "timeout": PATIENCE_S, **fields}
        made = cls(
            model="m",
            base_url=self.server.base_url,
            check_embedding_ctx_length=False,  # its tokenizer would be fetched
            **given,
        )
        self.objects += [made.client, made.async_client]
        return made

    async def close(self) -> None:
        for resource in self.objects:
            if isinstance(resource, AsyncEmbeddings):
                await resource._client.close()
            elif resource is not None:
                resource._client.close()


@pytest.fixture
async def opened(server: EmbeddingsServer) -> AsyncIterator[Opened]:
    """Yield what opens embeddings, which are closed when the test is over."""
    made = Opened(server)
    yield made
    await made.close()


def ask_in_threads(embeddings: OpenAIEmbeddings, texts: list[str] = TEXTS) -> list[Any]:
    """Return what callers in threads of their own get, each under its tenant."""
    start = threading.Barrier(len(texts))

    def ask(text: str) -> Any:
        tenant.set(text.split()[0])
        start.wait(PATIENCE_S)
        try:
            return embeddings.embed_query(text)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(texts)) as pool:
        return list(pool.map(ask, texts))


async def ask_on_loop(embeddings: OpenAIEmbeddings, texts: list[str] = TEXTS) -> list[Any]:
    """Return what tasks get, each under its tenant."""

    async def ask(text: str) -> Any:
        tenant.set(text.split()[0])
        return await embeddings.aembed_query(text)

    return await asyncio.gather(*map(ask, texts), return_exceptions=True)


# Who a call says it is from.


def wrapping(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a tracer's version of a method that sends: it adds the caller's tenant."""

    @functools.wraps(original)
    def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, *args, extra_headers={"x-tenant": tenant.get()}, **kwargs)

    return traced


def add_tenant(request: Any) -> None:
    """Do as a request hook of a gateway."""
    request.headers["x-tenant"] = tenant.get()


async def add_tenant_async(request: Any) -> None:
    """Do as ``add_tenant`` on a loop."""
    request.headers["x-tenant"] = tenant.get()


class Users(OpenAIEmbeddings):
    """Embeddings that say for whom they ask."""

    @property
    def _invocation_params(self) -> dict[str, Any]:
        return {**super()._invocation_params, "user": tenant.get()}


class Headers(Mapping[str, str]):
    def __getitem__(self, name: str) -> str:
        return tenant.get()

    def __iter__(self) -> Iterator[str]:
        return iter(("x-tenant",))

    def __len__(self) -> int:
        return 1


class Gateway(openai.OpenAI):
    def _prepare_options(self, options: Any) -> Any:
        options = super()._prepare_options(options)
        options.headers = {**(options.headers or {}), "x-tenant": tenant.get()}
        return options


class Proxy:
    """A tracer's stand-in for a resource."""

    def __init__(self, resource: Any) -> None:
        self._resource = resource
        self._client = resource._client

    def create(self, **kwargs: Any) -> Any:
        return wrapping(type(self._resource).create)(self._resource, **kwargs)


def _key(opened: Opened, patch: pytest.MonkeyPatch) -> OpenAIEmbeddings:
    return opened.embeddings(api_key=lambda: tenant.get())


def _hook(opened: Opened, patch: pytest.MonkeyPatch) -> OpenAIEmbeddings:
    return opened.embeddings(
        http_client=httpx.Client(event_hooks={"request": [add_tenant]}),
        http_async_client=httpx.AsyncClient(event_hooks={"request": [add_tenant_async]}),
    )


def _headers(opened: Opened, patch: pytest.MonkeyPatch) -> OpenAIEmbeddings:
    how: dict[str, Any] = {
        "base_url": opened.server.base_url,
        "api_key": "k",
        "default_headers": Headers(),
        "timeout": PATIENCE_S,
    }
    return opened.embeddings(
        client=openai.OpenAI(**how).embeddings, async_client=openai.AsyncOpenAI(**how).embeddings
    )


def _user(opened: Opened, patch: pytest.MonkeyPatch) -> OpenAIEmbeddings:
    return opened.embeddings(Users)


def _patched_params(opened: Opened, patch: pytest.MonkeyPatch) -> OpenAIEmbeddings:
    patch.setattr(OpenAIEmbeddings, "_invocation_params", property(_with_user))
    return opened.embeddings()


def _with_user(embeddings: OpenAIEmbeddings) -> dict[str, Any]:
    return {"model": embeddings.model, "user": tenant.get()}


def _wrapped(opened: Opened, patch: pytest.MonkeyPatch) -> OpenAIEmbeddings:
    made = opened.embeddings()
    made.client, made.async_client = Proxy(made.client), Proxy(made.async_client)
    return made


def _traced(opened: Opened, patch: pytest.MonkeyPatch) -> OpenAIEmbeddings:
    for cls in (Embeddings, AsyncEmbeddings):
        patch.setattr(cls, "create", wrapping(cls.create))
    return opened.embeddings()


def _gateway(opened: Opened, patch: pytest.MonkeyPatch) -> OpenAIEmbeddings:
    client = Gateway(base_url=opened.server.base_url, api_key="k", max_retries=1)
    return opened.embeddings(client=client.embeddings)


def _sending(opened: Opened, patch: pytest.MonkeyPatch) -> OpenAIEmbeddings:
    sync, coroutine = httpx.Client.send, httpx.AsyncClient.send

    @functools.wraps(sync)
    def send(self: Any, request: Any, **kwargs: Any) -> Any:
        add_tenant(request)
        return sync(self, request, **kwargs)

    @functools.wraps(coroutine)
    async def asend(self: Any, request: Any, **kwargs: Any) -> Any:
        add_tenant(request)
        return await coroutine(self, request, **kwargs)

    patch.setattr(httpx.Client, "send", send)
    patch.setattr(httpx.AsyncClient, "send", asend)
    return opened.embeddings()


@dataclass(frozen=True)
class Program:
    """A program whose calls say for whom they are."""

    make: Callable[[Opened, pytest.MonkeyPatch], OpenAIEmbeddings]
    said: Callable[[Heard], str]
    is_async: bool = True


PROGRAMS = {
    "key": Program(_key, lambda heard: heard.key, is_async=False),  # an executor has no context
    "hook": Program(_hook, lambda heard: heard.tenant),
    "headers": Program(_headers, lambda heard: heard.tenant),
    "user": Program(_user, lambda heard: heard.user),
    "patched class": Program(_patched_params, lambda heard: heard.user),
    "wrapped client": Program(_wrapped, lambda heard: heard.tenant),
    "traced client": Program(_traced, lambda heard: heard.tenant),
    "gateway": Program(_gateway, lambda heard: heard.tenant, is_async=False),
    "traced transport": Program(_sending, lambda heard: heard.tenant),
}


def expect_right_calls(found: list[Any], server: EmbeddingsServer, program: Program) -> None:
    """Check vectors, and that each call is that of its texts' tenant."""
    assert found == [vector_of(text) for text in TEXTS]
    assert sorted(text for heard in server.heard for text in heard.texts) == sorted(TEXTS)
    for heard in server.heard:
        assert {text.split()[0] for text in heard.texts} == {program.said(heard)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_call_in_threads_has_the_identity_of_its_texts(
    name: str,
    opened: Opened,
    server: EmbeddingsServer,
    accelerator: Accelerator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    embeddings = PROGRAMS[name].make(opened, monkeypatch)
    with activate(accelerator):
        found = ask_in_threads(embeddings)
    expect_right_calls(found, server, PROGRAMS[name])


@pytest.mark.parametrize("name", [name for name, one in PROGRAMS.items() if one.is_async])
async def test_each_call_on_a_loop_has_the_identity_of_its_texts(
    name: str,
    opened: Opened,
    server: EmbeddingsServer,
    accelerator: Accelerator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    embeddings = PROGRAMS[name].make(opened, monkeypatch)
    with activate(accelerator):
        found = await ask_on_loop(embeddings)
    expect_right_calls(found, server, PROGRAMS[name])


def test_a_tracer_that_comes_later_is_seen(
    opened: Opened,
    server: EmbeddingsServer,
    accelerator: Accelerator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    embeddings = opened.embeddings()
    with activate(accelerator):
        ask_in_threads(embeddings)
        assert {heard.tenant for heard in server.heard} == {""}
        server.heard.clear()
        monkeypatch.setattr(Embeddings, "create", wrapping(Embeddings.create))
        found = ask_in_threads(embeddings)
    expect_right_calls(found, server, PROGRAMS["traced client"])


async def test_options_of_a_call_are_only_that_calls(
    opened: Opened, server: EmbeddingsServer, accelerator: Accelerator
) -> None:
    embeddings = opened.embeddings()
    with activate(accelerator):
        await asyncio.gather(*(embeddings.aembed_query(text, user=text) for text in TEXTS))
    assert {(*heard.texts, heard.user) for heard in server.heard} == {
        (text, text) for text in TEXTS
    }


async def test_settings_of_a_moment_are_those_of_its_calls(
    opened: Opened, server: EmbeddingsServer, accelerator: Accelerator
) -> None:
    embeddings = opened.embeddings()
    threads = threading.active_count()

    async def ask(text: str) -> Any:
        embeddings.model_kwargs = {"user": text.split()[0]}
        return await embeddings.aembed_query(text)

    with activate(accelerator):
        found = await asyncio.gather(*map(ask, TEXTS))
        expect_right_calls(found, server, PROGRAMS["user"])
        assert len(server.calls) < NUM_CALLERS
        for number in range(50):
            embeddings.model_kwargs = {"user": f"{number}"}
            await embeddings.aembed_query("x")
        assert threading.active_count() < threads + 10


async def test_a_key_that_changes_is_that_of_the_calls_made_with_it(
    opened: Opened, server: EmbeddingsServer, accelerator: Accelerator
) -> None:
    embeddings = opened.embeddings()
    with activate(accelerator):
        for name in TENANTS:
            for resource in (embeddings.client, embeddings.async_client):
                resource._client.api_key = name
            own = [text for text in TEXTS if text.startswith(name)]
            assert await ask_on_loop(embeddings, own) == [vector_of(text) for text in own]
    assert len(server.calls) < NUM_CALLERS
    for heard in server.heard:
        assert {text.split()[0] for text in heard.texts} == {heard.key}


# Errors: each caller's own, and nothing of another's in it.


def held_by(error: BaseException) -> str:
    """Return all that an error tracker would send of an error."""
    said = list[str]()
    while error is not None:
        said += [str(error), repr(error), repr(vars(error))]
        for name in ("request", "response"):
            part = getattr(error, name, None)
            with contextlib.suppress(httpx.RequestNotRead, httpx.ResponseNotRead):
                said.append(repr(getattr(part, "content", None)))
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if frame.f_code.co_filename != __file__:
                said += [held_in(value) for value in frame.f_locals.values()]
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return " ".join(said)


def held_in(value: Any) -> str:
    """Return what a local variable shows of itself, and the content of a request."""
    shown = repr(value)
    with contextlib.suppress(Exception):
        shown += repr(value.content)
    return shown


FAILURES = {
    "500": Refusal(500, "0.01"),
    "500 that echoes": Refusal(500, "0.01", echoes=True),
    "429 that echoes": Refusal(429, "0.01", echoes=True),
    "429 for long": Refusal(429, "300", echoes=True),
    "401": Refusal(401, echoes=True),
    "422": Refusal(422, echoes=True),
    "timeout": None,
}


def expect_own_errors(found: list[Any], server: EmbeddingsServer, name: str) -> None:
    """Check that texts were sent together, and that each caller got an error of its own."""
    assert any(len(texts) > 1 for texts in server.calls)
    assert len({id(error) for error in found}) == len(TEXTS)
    refusal = FAILURES[name]
    for text, error in zip(TEXTS, found, strict=True):
        if refusal is None:
            assert type(error) is openai.APITimeoutError
        else:
            assert isinstance(error, openai.APIStatusError)
            assert error.status_code == refusal.status
            assert error.response.headers.get("retry-after") == refusal.retry_after
        held = held_by(error)
        assert text in held
        assert [other for other in TEXTS if other != text and f"{other!r}" in held] == []
        assert [other for other in TEXTS if other != text and f'"{other}"' in held] == []
    # Never more than plain: the first call of each, and its one retry.
    assert max(sum(text in texts for texts in server.calls) for text in TEXTS) <= 2


@pytest.fixture(params=FAILURES)
def failing(request: pytest.FixtureRequest, server: EmbeddingsServer) -> str:
    """Let every call fail in one way, and return its name."""
    refusal = FAILURES[request.param]
    server.hangs = refusal is None
    if refusal is not None:
        server.refusals.extend([refusal] * 100)
    return request.param


def test_a_failure_in_threads_shows_only_the_callers_own_text(
    failing: str, opened: Opened, server: EmbeddingsServer, accelerator: Accelerator
) -> None:
    embeddings = opened.embeddings(timeout=0.2 if server.hangs else PATIENCE_S)
    with activate(accelerator):
        found = ask_in_threads(embeddings)
    expect_own_errors(found, server, failing)


async def test_a_failure_on_a_loop_shows_only_the_callers_own_text(
    failing: str, opened: Opened, server: EmbeddingsServer, accelerator: Accelerator
) -> None:
    embeddings = opened.embeddings(timeout=0.2 if server.hangs else PATIENCE_S)
    with activate(accelerator):
        found = await ask_on_loop(embeddings)
    expect_own_errors(found, server, failing)


async def test_a_client_that_may_not_try_again_shares_no_call(
    opened: Opened, server: EmbeddingsServer, accelerator: Accelerator
) -> None:
    server.refusals.extend([Refusal(500)] * 100)
    with activate(accelerator):
        found = await ask_on_loop(opened.embeddings(max_retries=0))
    assert {type(error) for error in found} == {openai.InternalServerError}
    assert sorted(server.calls) == sorted([text] for text in TEXTS)


# Whose vector is whose.


@pytest.mark.parametrize(
    ("indexes", "is_understood"),
    [
        (lambda count: list(reversed(range(count))), True),
        (lambda count: [0] * count, False),
        (lambda count: list(range(count))[:-1] or [0], False),
    ],
)
async def test_vectors_go_by_their_index(
    indexes: Callable[[int], list[int]],
    is_understood: bool,
    opened: Opened,
    server: EmbeddingsServer,
    accelerator: Accelerator,
) -> None:
    server.indexes = indexes
    with activate(accelerator):
        found = await ask_on_loop(opened.embeddings())
    assert found == [vector_of(text) for text in TEXTS]
    alone = [texts for texts in server.calls if len(texts) == 1]
    assert len(alone) < len(server.calls)
    assert (sorted(alone) == sorted([text] for text in TEXTS)) == (not is_understood)


# No call waits for another's.


def test_as_many_large_calls_are_in_flight_as_plain(
    opened: Opened, server: EmbeddingsServer, accelerator: Accelerator
) -> None:
    embeddings = opened.embeddings(chunk_size=100)
    server.awaited = NUM_CALLERS
    lists = [[f"{caller} {number}" for number in range(60)] for caller in range(NUM_CALLERS)]
    with activate(accelerator), ThreadPoolExecutor(NUM_CALLERS) as pool:
        found = list(pool.map(embeddings.embed_documents, lists))
    assert found == [[vector_of(text) for text in texts] for texts in lists]
    assert len(server.calls) == NUM_CALLERS


def test_a_query_is_answered_while_loads_are_under_way(
    opened: Opened, server: EmbeddingsServer, accelerator: Accelerator
) -> None:
    embeddings = opened.embeddings(chunk_size=10)
    server.gate.clear()
    with activate(accelerator), ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(embeddings.embed_documents, TEXTS) for _ in range(2)]
        short = pool.submit(embeddings.embed_documents, TEXTS[:3])
        try:
            assert embeddings.embed_query("q") == vector_of("q")
            assert not any(one.done() for one in (*loads, short))
        finally:
            server.gate.set()
        for load in loads:
            assert load.result(PATIENCE_S) == [vector_of(text) for text in TEXTS]
    assert [len(texts) for texts in server.calls].count(10) == 6


def test_no_thread_is_left_after_closing(opened: Opened, server: EmbeddingsServer) -> None:
    before = set(threading.enumerate())
    with Accelerator(strict=True) as accelerator, activate(accelerator):
        ask_in_threads(opened.embeddings())
        assert set(threading.enumerate()) - before
    assert set(threading.enumerate()) <= before

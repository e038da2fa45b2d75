"""Callers of one hosted embeddings object keep their identity, their errors and their pace."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import lc_hosted
import openai
import pytest
import shared_calls_kit
from embeddings_server import EmbeddingsServer, Heard, Refusal, vector_of
from langchain_openai import OpenAIEmbeddings
from lc_hosted import Make
from openai.resources.embeddings import Embeddings
from openai_http import httpx
from shared_calls_kit import PATIENCE_S

from langchain_rag_accel import activate
from rag_accel import Accelerator

NUM_CALLERS = 32
TENANTS = ("anna", "bert", "carl", "dora")
tenant: ContextVar[str] = ContextVar("tenant", default="none")

TEXTS = [f"{TENANTS[number % 4]} asks {number}" for number in range(NUM_CALLERS)]


server, opened, plain = shared_calls_kit.server, shared_calls_kit.opened, shared_calls_kit.plain
make = lc_hosted.make


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


def expect_right_calls(
    found: list[Any], server: EmbeddingsServer, said: Callable[[Heard], str]
) -> None:
    """Check vectors, and that each call says that it is from its texts' tenant."""
    assert found == [vector_of(text) for text in TEXTS]
    assert sorted(text for heard in server.heard for text in heard.texts) == sorted(TEXTS)
    for heard in server.heard:
        assert {text.split()[0] for text in heard.texts} == {said(heard)}


@pytest.mark.parametrize("on_loop", [False, True])
async def test_each_call_has_the_identity_of_its_texts(
    on_loop: bool, make: Make, server: EmbeddingsServer, accelerator: Accelerator
) -> None:
    embeddings = make(
        http_client=httpx.Client(event_hooks={"request": [add_tenant]}),
        http_async_client=httpx.AsyncClient(event_hooks={"request": [add_tenant_async]}),
    )
    with activate(accelerator):
        found = await ask_on_loop(embeddings) if on_loop else ask_in_threads(embeddings)
    expect_right_calls(found, server, lambda heard: heard.tenant)


def test_a_tracer_that_comes_later_is_seen(
    plain: OpenAIEmbeddings,
    server: EmbeddingsServer,
    accelerator: Accelerator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with activate(accelerator):
        ask_in_threads(plain)
        assert {heard.tenant for heard in server.heard} == {""}
        server.heard.clear()
        monkeypatch.setattr(Embeddings, "create", wrapping(Embeddings.create))
        found = ask_in_threads(plain)
    expect_right_calls(found, server, lambda heard: heard.tenant)


async def test_options_of_a_call_are_only_that_calls(
    plain: OpenAIEmbeddings, server: EmbeddingsServer, accelerator: Accelerator
) -> None:
    with activate(accelerator):
        await asyncio.gather(*(plain.aembed_query(text, user=text) for text in TEXTS))
    assert {(*heard.texts, heard.user) for heard in server.heard} == {
        (text, text) for text in TEXTS
    }


async def test_settings_of_a_moment_are_those_of_its_calls(
    plain: OpenAIEmbeddings, server: EmbeddingsServer, accelerator: Accelerator
) -> None:
    threads = threading.active_count()

    async def ask(text: str) -> Any:
        plain.model_kwargs = {"user": text.split()[0]}
        return await plain.aembed_query(text)

    with activate(accelerator):
        found = await asyncio.gather(*map(ask, TEXTS))
        expect_right_calls(found, server, lambda heard: heard.user)
        assert len(server.calls) < NUM_CALLERS
        for number in range(50):
            plain.model_kwargs = {"user": f"{number}"}
            await plain.aembed_query("x")
        assert threading.active_count() < threads + 10


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
    "500 that echoes": Refusal(500, "0.01", echoes=True),
    "429 for long": Refusal(429, "300", echoes=True),
    "422": Refusal(422, echoes=True),
    "timeout": None,
}


def expect_own_errors(
    found: list[Any], server: EmbeddingsServer, name: str, texts: list[str]
) -> None:
    """Check that texts were sent together, and that each caller got an error of its own."""
    if len(texts) == NUM_CALLERS:  # few threads may come one after the other
        assert any(len(call) > 1 for call in server.calls)
    assert len({id(error) for error in found}) == len(texts)
    refusal = FAILURES[name]
    for text, error in zip(texts, found, strict=True):
        if refusal is None:
            assert type(error) is openai.APITimeoutError
        else:
            assert isinstance(error, openai.APIStatusError)
            assert error.status_code == refusal.status
            assert error.response.headers.get("retry-after") == refusal.retry_after
        held = held_by(error)
        assert text in held
        assert [other for other in texts if other != text and f"{other!r}" in held] == []
        assert [other for other in texts if other != text and f'"{other}"' in held] == []
    # Never more than plain: the first call of each, and its one retry.
    assert max(sum(text in call for call in server.calls) for text in texts) <= 2


@pytest.fixture(params=FAILURES)
def failing(request: pytest.FixtureRequest, server: EmbeddingsServer) -> str:
    """Let every call fail in one way, and return its name."""
    refusal = FAILURES[request.param]
    server.hangs = refusal is None
    if refusal is not None:
        server.refusals.extend([refusal] * 100)
    return request.param


@pytest.mark.cross_product(keep=8)
@pytest.mark.parametrize("is_limited", [False, True])
@pytest.mark.parametrize("on_loop", [False, True])
async def test_a_failure_shows_only_the_callers_own_text(
    on_loop: bool, is_limited: bool, failing: str, make: Make, server: EmbeddingsServer
) -> None:
    embeddings = make(max_retries=1, timeout=0.2 if server.hangs else PATIENCE_S)
    # At an endpoint that refuses every call, the turns of many callers take seconds.
    texts = TEXTS[:4] if is_limited else TEXTS
    with Accelerator(strict=True, endpoint_limits=is_limited) as accelerator, activate(accelerator):
        found = (
            await ask_on_loop(embeddings, texts) if on_loop else ask_in_threads(embeddings, texts)
        )
    expect_own_errors(found, server, failing, texts)


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
    plain: OpenAIEmbeddings,
    server: EmbeddingsServer,
    accelerator: Accelerator,
) -> None:
    server.indexes = indexes
    with activate(accelerator):
        found = await ask_on_loop(plain)
    assert found == [vector_of(text) for text in TEXTS]
    alone = [texts for texts in server.calls if len(texts) == 1]
    assert len(alone) < len(server.calls)
    assert (sorted(alone) == sorted([text] for text in TEXTS)) == (not is_understood)


# No call waits for another's.


def test_as_many_large_calls_are_in_flight_as_plain(
    make: Make, server: EmbeddingsServer, accelerator: Accelerator
) -> None:
    embeddings = make(chunk_size=100)
    server.awaited = NUM_CALLERS
    lists = [[f"{caller} {number}" for number in range(60)] for caller in range(NUM_CALLERS)]
    with activate(accelerator), ThreadPoolExecutor(NUM_CALLERS) as pool:
        found = list(pool.map(embeddings.embed_documents, lists))
    assert found == [[vector_of(text) for text in texts] for texts in lists]
    assert len(server.calls) == NUM_CALLERS


def test_a_query_is_answered_while_loads_are_under_way(
    make: Make, server: EmbeddingsServer, accelerator: Accelerator
) -> None:
    embeddings = make(chunk_size=10)
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

"""Models that are made ready while a server starts."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import pytest
from langchain_core.runnables import RunnableLambda
from serving_kit import HANG_S, client_of

from langchain_rag_accel import ChatRagAccel
from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.engine_api import GenerationInput, PrimitiveKind, TextBatch
from rag_accel.serving.app import ServingApp
from rag_accel.serving.serving_options import ServingOptions
from rag_accel.serving.target import ServingTarget
from rag_accel.serving.tenants import ServedTenants
from rag_accel.testing import FAKE_PROFILE, FakeEngine

SAMPLES = {
    "llm": (PrimitiveKind.DECODING, GenerationInput(())),
    "embedder": (PrimitiveKind.EMBEDDING, TextBatch(("a sample",))),
}


class GatedEngine(FakeEngine):
    """An engine whose steps end when a test lets them."""

    def __init__(self, name: str) -> None:
        super().__init__(replace(FAKE_PROFILE, samples=(SAMPLES[name],)))
        self.has_begun, self.may_go = threading.Event(), threading.Event()

    def step(self, budget):
        self.has_begun.set()
        self.may_go.wait(HANG_S)
        return super().step(budget)


def asking() -> RAGraph:
    return RAGraph().add_generation("a", "{input}").add_edge(START, "a").add_edge("a", END)


def app_of(target: ServingTarget, **options: float) -> ServingApp:
    return ServingApp(ServedTenants(target), ServingOptions(**options))  # pyright: ignore[reportArgumentType]


@asynccontextmanager
async def running(app: ServingApp) -> AsyncIterator[httpx.AsyncClient]:
    """Run an application's start and end around a block, which has a client of it."""
    asgi = app.asgi()
    async with asgi.router.lifespan_context(asgi), client_of(asgi) as client:
        yield client


async def until_ready(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(HANG_S):
        while (await client.get("/healthz")).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("name", SAMPLES)
async def test_health_says_preparing_until_models_are_ready(name: str) -> None:
    gated = GatedEngine(name)
    with Accelerator(**{name: gated}) as accelerator:
        target = {
            "llm": ServingTarget("bot", asking(), accelerator),
            "embedder": ServingTarget("bot", accelerator),
        }[name]
        async with running(app_of(target)) as client:
            assert await asyncio.to_thread(gated.has_begun.wait, HANG_S)
            health = await client.get("/healthz")
            assert (health.status_code, health.json()["state"]) == (503, "preparing")
            gated.may_go.set()
            await until_ready(client)


async def test_a_request_is_answered_meanwhile() -> None:
    gated = GatedEngine("llm")
    with Accelerator(llm=gated) as accelerator:
        async with running(app_of(ServingTarget("bot", asking(), accelerator))) as client:
            assert await asyncio.to_thread(gated.has_begun.wait, HANG_S)
            asked = asyncio.create_task(client.post("/invoke", json={"input": "me"}))
            gated.may_go.set()
            assert (await asked).status_code == 200


async def test_without_time_for_it_nothing_is_prepared() -> None:
    gated = GatedEngine("llm")
    with Accelerator(llm=gated) as accelerator:
        target = ServingTarget("bot", asking(), accelerator)
        async with running(app_of(target, prepare_timeout_s=0)) as client:
            assert (await client.get("/healthz")).json() == {"state": "ready"}
    assert not gated.has_begun.is_set()


async def test_a_model_that_cannot_be_loaded_is_logged_and_told_to_whoever_asks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    chain = RunnableLambda(lambda text: text) | ChatRagAccel(model="./no-such-model")
    with caplog.at_level(logging.WARNING, "rag_accel.serving.tenants"):
        async with running(app_of(ServingTarget("bot", chain))) as client:
            await until_ready(client)
            answer = await client.post("/invoke", json={"input": "me"})
    assert "not prepared: ConfigError" in caplog.text
    assert answer.status_code == 500

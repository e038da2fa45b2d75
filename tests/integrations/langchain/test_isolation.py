"""Requests, tenants and changes to a store keep apart what is apart and show what is new."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
from lc_fakes import (
    TENANT,
    AsyncChat,
    SyncRetriever,
    TenantRetriever,
)
from lc_programs import QUESTION

from langchain_rag_accel import accelerate, activate
from langchain_rag_accel.coverage import coverage
from rag_accel import Accelerator


@pytest.mark.parametrize("twin", [True, False])
async def test_two_tenants_of_one_retriever_get_their_own_results(
    twin: bool, accelerator: Accelerator
) -> None:
    retriever = TenantRetriever()
    fast = accelerate(
        retriever if twin else retriever.with_config(tags=["x"]), accelerator=accelerator
    )

    async def ask(tenant: str) -> str:
        TENANT.set(tenant)
        (document,) = await fast.ainvoke("the same question")
        return document.page_content

    found = await asyncio.gather(*(ask(tenant) for tenant in ("red", "blue") * 8))
    assert found == [f"{tenant}: the same question" for tenant in ("red", "blue")] * 8
    assert len(retriever.journal.calls) == 16


async def test_what_a_run_leaves_behind_has_no_part_in_its_deadline() -> None:
    model = AsyncChat()
    left: list[asyncio.Task[Any]] = []

    async def later() -> Any:
        await asyncio.sleep(0.1)
        return await model.ainvoke("later")

    async def start(given: Any) -> Any:
        left.append(asyncio.create_task(later()))
        return (await model.ainvoke(given)).content

    with Accelerator(strict=True, deadline_s=0.05) as accelerator:
        fast = accelerate(RunnableLambda(start), accelerator=accelerator)
        await fast.ainvoke("now")
        assert (await left[0]).content


async def test_a_task_begun_inside_a_leaf_is_scheduled_for_itself_later(
    accelerator: Accelerator,
) -> None:
    inner, go = SyncRetriever(), asyncio.Event()
    found: list[Any] = []

    async def serve() -> None:
        await go.wait()
        with coverage() as meter:
            await inner.ainvoke("x")
        found.extend(meter.rows())

    class Starting(AsyncChat):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> Any:
            found.append(asyncio.create_task(serve()))
            return await super()._agenerate(*args, **kwargs)

    fast = accelerate(QUESTION | Starting(), accelerator=accelerator)
    with activate(accelerator):
        await fast.ainvoke({"input": "x"})
        go.set()
        await found[0]
    assert [(row.scheduled, row.passed_by) for row in found[1:]] == [(1, 0)]

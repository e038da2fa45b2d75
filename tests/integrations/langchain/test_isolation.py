"""Requests, tenants and changes to a store keep apart what is apart and show what is new."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from lc_fakes import (
    TENANT,
    AsyncChat,
    AsyncEmbeddings,
    FakeEmbeddings,
    SyncRetriever,
    TenantRetriever,
)
from lc_programs import QUESTION

from langchain_rag_accel import RagAccelVectorStore, accelerate, activate
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


def _stores(accelerator: Accelerator) -> dict[str, tuple[Any, Any]]:
    """Return plain stores, each with the same one accelerated."""
    memory = InMemoryVectorStore(FakeEmbeddings())
    ours = RagAccelVectorStore(FakeEmbeddings(), accelerator=accelerator)
    return {
        "memory": (memory, accelerate(memory, accelerator=accelerator)),
        "ours": (ours, ours),
    }


@pytest.mark.parametrize("name", ["memory", "ours"])
async def test_documents_added_through_or_beside_are_seen_by_the_next_request(
    name: str, accelerator: Accelerator
) -> None:
    plain, fast = _stores(accelerator)[name]
    retriever = accelerate(fast.as_retriever(search_kwargs={"k": 1}), accelerator=accelerator)
    assert await retriever.ainvoke("one") == []
    plain.add_documents([Document(id="1", page_content="one")])
    assert [found.id for found in await retriever.ainvoke("one")] == ["1"]
    await fast.aadd_documents([Document(id="2", page_content="two")])
    assert [found.id for found in retriever.invoke("two")] == ["2"]
    plain.delete(["1"])
    assert [found.id for found in retriever.invoke("one")] == ["2"]
    await fast.adelete(["2"])
    assert await retriever.ainvoke("one") == []


async def test_a_search_that_follows_an_add_sees_it_among_many(accelerator: Accelerator) -> None:
    store = RagAccelVectorStore(AsyncEmbeddings(), accelerator=accelerator)
    await store.aadd_documents([Document(id="seed", page_content="seed")])

    async def add_and_search(number: int) -> bool:
        text = f"document {number}"
        await store.aadd_documents([Document(id=str(number), page_content=text)])
        (found,) = await store.asimilarity_search(text, k=1)
        return found.id == str(number)

    assert all(await asyncio.gather(*map(add_and_search, range(24))))


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

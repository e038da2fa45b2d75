"""Views of ``coverage()`` on loops, in cancelled callers and inside of each other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
from lc_fakes import AsyncChat, FakeEmbeddings
from lc_programs import model_chain

from langchain_rag_accel import accelerate, coverage
from rag_accel import Accelerator

INPUT = {"input": "question one"}


async def test_a_cancelled_caller_leaves_its_block(accelerator: Accelerator) -> None:
    begun = asyncio.Event()

    async def wait(given: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    fast = accelerate(RunnableLambda(wait), accelerator=accelerator)
    seen = coverage(fast)

    async def ask() -> None:
        with seen:
            await fast.ainvoke("x")

    task = asyncio.create_task(ask())
    await asyncio.wait_for(begun.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await AsyncChat().ainvoke("x")
    assert seen.passed_by == 0


async def test_a_plain_coroutine_that_is_cancelled_hides_no_later_call() -> None:
    begun = asyncio.Event()

    class Slow(FakeEmbeddings):
        async def aembed_query(self, text: str) -> list[float]:
            begun.set()
            return await asyncio.Event().wait()  # type: ignore[return-value]

    embeddings = Slow()
    with coverage() as seen:
        task = asyncio.create_task(embeddings.aembed_query("x"))
        await asyncio.wait_for(begun.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        embeddings.embed_query("x")
    assert [(one.method, one.passed_by) for one in seen.calls] == [
        ("aembed_query", 1),
        ("embed_query", 1),
    ]


def test_an_inner_block_takes_its_calls_from_the_outer(accelerator: Accelerator) -> None:
    fast = accelerate(model_chain(), accelerator=accelerator)
    with coverage(fast) as outer:
        with coverage(fast) as inner:
            fast.invoke(INPUT)
        fast.invoke(INPUT)
    assert (outer.borrowed, inner.borrowed) == (1, 1)


def test_accelerated_inside_of_plain_is_scheduled_as_without_a_view(
    accelerator: Accelerator,
) -> None:
    inner = accelerate(FakeEmbeddings(), accelerator=accelerator)

    class Outer(FakeEmbeddings):
        def embed_query(self, text: str) -> list[float]:
            return inner.embed_query(text)

    with coverage() as seen:
        Outer().embed_query("x")
    assert (seen.borrowed, seen.passed_by) == (1, 1)

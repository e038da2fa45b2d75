"""Sync leaves that run async programs of their own end, however many of them are called at once."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda

from langchain_rag_accel import accelerate, activate
from rag_accel import Accelerator

PATIENCE_S = 60.0


class Inner(BaseRetriever):
    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return [Document(page_content=query)]


class Outer(BaseRetriever):
    """Ask another retriever on a loop of its own."""

    inner: Any

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        return asyncio.run(self.inner.ainvoke(query))


def program(way: str, accelerator: Accelerator) -> Any:
    if way == "twin":
        return accelerate(
            Outer(inner=accelerate(Inner(), accelerator=accelerator)), accelerator=accelerator
        )
    outer = Outer(inner=Inner())
    if way == "runnable":
        return accelerate(RunnableLambda(lambda q: q) | outer, accelerator=accelerator)
    return outer


@pytest.mark.parametrize("way", ["twin", "runnable", "activate"])
@pytest.mark.parametrize("call_threads", [1, 4])
async def test_async_callers_of_leaves_with_loops_inside_all_end(
    way: str, call_threads: int
) -> None:
    with Accelerator(call_threads=call_threads, strict=True) as accelerator:
        fast = program(way, accelerator)
        with activate(accelerator) if way == "activate" else nullcontext():
            asked = [str(number) for number in range(40)]
            answers = asyncio.gather(*(fast.ainvoke(one) for one in asked))
            found = await asyncio.wait_for(answers, PATIENCE_S)
            assert [docs[0].page_content for docs in found] == asked
            after = await asyncio.wait_for(fast.ainvoke("after"), PATIENCE_S)
            assert after[0].page_content == "after"

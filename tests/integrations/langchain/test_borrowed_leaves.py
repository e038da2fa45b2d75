"""A borrowed leaf runs where its caller is, and never waits for calls of others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
from lc_fakes import (
    TENANT,
    AsyncChat,
    AsyncRetriever,
    FakeEmbeddings,
    OldRetriever,
    SyncChat,
    SyncRetriever,
    Where,
    here,
)
from lc_programs import QUESTION, retrieval_chain

from langchain_rag_accel import accelerate
from rag_accel import Accelerator

INPUT = {"input": "question one"}


@pytest.mark.parametrize("leaf", ["retriever", "old retriever", "model", "embeddings"])
async def test_sync_only_leaves_called_from_a_loop_overlap_in_threads_of_ours(
    leaf: str, accelerator: Accelerator
) -> None:
    together = threading.Barrier(32)

    class Meeting:
        def check(self, given: Any) -> None:
            together.wait(10.0)

    class MeetingRetriever(Meeting, SyncRetriever):
        pass

    class MeetingOldRetriever(Meeting, OldRetriever):
        pass

    class MeetingChat(Meeting, SyncChat):
        pass

    class MeetingEmbeddings(FakeEmbeddings):
        def embed_query(self, text: str) -> list[float]:
            together.wait(10.0)
            return super().embed_query(text)

    made: dict[str, Any] = {
        "retriever": MeetingRetriever(),
        "old retriever": MeetingOldRetriever(),
        "model": MeetingChat(),
        "embeddings": MeetingEmbeddings(),
    }
    fast = accelerate(made[leaf], accelerator=accelerator)
    call = fast.aembed_query if leaf == "embeddings" else fast.ainvoke
    # No call gets past the barrier unless all 32 are there at once.
    assert len(await asyncio.gather(*(call(f"question {n}") for n in range(32)))) == 32


WAYS: dict[str, Callable[[Any], Any]] = {
    "invoke": lambda program: program.invoke(INPUT),
    "ainvoke": lambda program: program.ainvoke(INPUT),
    "stream": lambda program: list(program.stream(INPUT)),
    "astream": lambda program: _consume(program.astream(INPUT)),
    "batch": lambda program: program.batch([INPUT]),
    "abatch": lambda program: program.abatch([INPUT]),
}


async def _consume(stream: Any) -> Any:
    return [chunk async for chunk in stream]


@pytest.mark.parametrize("way", WAYS)
async def test_a_leaf_sees_the_callers_thread_loop_and_context(
    way: str, accelerator: Accelerator
) -> None:
    TENANT.set(f"tenant of {way}")
    retriever, model = AsyncRetriever(), AsyncChat()
    seen: list[Where] = []
    for program in (
        retrieval_chain(retriever, model),
        accelerate(retrieval_chain(retriever, model), accelerator=accelerator),
    ):
        result = WAYS[way](program)
        if hasattr(result, "__await__"):
            await result
        seen.append(model.journal.calls[-1])
    of_bare, of_fast = seen
    assert of_fast.tenant == of_bare.tenant == f"tenant of {way}"
    assert (of_fast.loop is None) == (of_bare.loop is None)
    if way.startswith("a"):
        assert of_fast == of_bare == here()


async def test_a_sync_leaf_of_an_async_call_sees_the_callers_context(
    accelerator: Accelerator,
) -> None:
    TENANT.set("mine")
    retriever = SyncRetriever()
    fast = accelerate(retrieval_chain(retriever), accelerator=accelerator)
    await fast.ainvoke(INPUT)
    (call,) = retriever.journal.calls
    assert call.tenant == "mine"
    assert call.thread != threading.get_ident()


def test_what_a_leaf_sets_in_its_context_stays_as_in_the_plain_program(
    accelerator: Accelerator,
) -> None:
    class Setting(SyncRetriever):
        def check(self, given: Any) -> None:
            TENANT.set("set inside")

    for retriever in (Setting(), accelerate(Setting(), accelerator=accelerator)):
        TENANT.set("outside")
        retriever.invoke("x")
        assert TENANT.get() == "set inside"


def test_no_context_variable_of_ours_is_left_behind(accelerator: Accelerator) -> None:
    from contextvars import copy_context

    before = dict(copy_context().items())
    fast = accelerate(QUESTION | AsyncChat(), accelerator=accelerator)
    fast.invoke(INPUT)
    stream = fast.stream(INPUT)
    next(stream)
    during = {var: value for var, value in copy_context().items() if before.get(var) != value}
    list(stream)
    assert not [var for var, value in during.items() if value]


def test_a_thread_of_the_users_own_is_served_through_its_config(accelerator: Accelerator) -> None:
    model = AsyncChat()

    def call_in_threads(given: dict[str, str], config: Any) -> list[str]:
        with ThreadPoolExecutor(4) as pool:
            found = pool.map(lambda number: model.invoke(f"{number}", config), range(4))
            return [str(message.content) for message in found]

    fast = accelerate(RunnableLambda(call_in_threads), accelerator=accelerator)
    assert fast.invoke(INPUT) == RunnableLambda(call_in_threads).invoke(INPUT)


async def test_leaves_that_are_only_async_are_never_called_synchronously(
    accelerator: Accelerator,
) -> None:
    class OnlyAsyncChat(AsyncChat):
        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("called synchronously")

    class OnlyAsyncRetriever(AsyncRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
            raise AssertionError("called synchronously")

    expected = retrieval_chain().invoke(INPUT)
    program = retrieval_chain(OnlyAsyncRetriever(), OnlyAsyncChat())
    fast = accelerate(program, accelerator=accelerator)
    assert await fast.ainvoke(INPUT) == expected
    for twin in (OnlyAsyncChat(), OnlyAsyncRetriever()):
        assert await accelerate(twin, accelerator=accelerator).ainvoke("x")

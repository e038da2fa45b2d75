"""A program's own exceptions arrive as they are and harm nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from lc_fakes import (
    AsyncChat,
    AsyncRetriever,
    FakeEmbeddings,
    FakeLLM,
    OldRetriever,
    StreamingChat,
    SyncChat,
    SyncRetriever,
)
from lc_programs import QUESTION, retrieval_chain, store_retriever
from lc_runs import WAYS, come

from langchain_rag_accel import accelerate
from rag_accel import Accelerator

INPUT = {"input": "question one"}


class UsersError(Exception):
    """Be the user's own exception."""


def failing_leaves() -> dict[str, Callable[[Exception], Any]]:
    return {
        "sync model": lambda error: QUESTION | SyncChat(error=error),
        "streaming model": lambda error: QUESTION | StreamingChat(error=error),
        "async model": lambda error: QUESTION | AsyncChat(error=error),
        "completion model": lambda error: QUESTION | FakeLLM(error=error),
        "sync retriever": lambda error: retrieval_chain(SyncRetriever(error=error)),
        "async retriever": lambda error: retrieval_chain(AsyncRetriever(error=error)),
        "old retriever": lambda error: retrieval_chain(OldRetriever(error=error)),
        "embeddings": lambda error: store_retriever(embeddings=_broken_after_setup(error)),
        "function": lambda error: RunnableLambda(_raising(error)),
    }


def _broken_after_setup(error: Exception) -> FakeEmbeddings:
    class Broken(FakeEmbeddings):
        def embed_query(self, text: str) -> list[float]:
            raise error

    return Broken()


def _raising(error: Exception) -> Callable[[Any], Any]:
    def raise_it(given: Any) -> Any:
        raise error

    return raise_it


@pytest.mark.cross_product(keep=30)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("leaf", failing_leaves())
async def test_the_users_exception_arrives_as_the_same_object(
    leaf: str, way: str, accelerator: Accelerator
) -> None:
    error = UsersError("the user's own")
    fast = accelerate(failing_leaves()[leaf](error), accelerator=accelerator)
    assert await come(way, fast, [INPUT], {}) == ("raised", error)
    assert error.__cause__ is None
    error.__traceback__ = None


@pytest.mark.parametrize("twin", ["model", "retriever", "embeddings", "llm"])
async def test_an_accelerated_leaf_raises_the_users_exception(
    twin: str, accelerator: Accelerator
) -> None:
    error = UsersError("the user's own")
    made: dict[str, Any] = {
        "model": AsyncChat(error=error),
        "retriever": SyncRetriever(error=error),
        "embeddings": FakeEmbeddings(error=error),
        "llm": FakeLLM(error=error),
    }
    fast = accelerate(made[twin], accelerator=accelerator)
    call, acall = (
        (fast.embed_query, fast.aembed_query)
        if twin == "embeddings"
        else (fast.invoke, fast.ainvoke)
    )
    with pytest.raises(UsersError) as caught:
        call("x")
    assert caught.value is error
    with pytest.raises(UsersError) as caught:
        await acall("x")
    assert caught.value is error
    error.__traceback__ = None


async def test_a_failing_request_harms_no_other_one(accelerator: Accelerator) -> None:
    class Picky(AsyncChat):
        def check(self, given: Any) -> None:
            if "bad" in str(given):
                raise UsersError(str(given))

    fast = accelerate(QUESTION | Picky(), accelerator=accelerator)
    inputs = [{"input": f"{'bad' if number % 3 == 0 else 'good'} {number}"} for number in range(30)]
    found = await asyncio.gather(*(fast.ainvoke(given) for given in inputs), return_exceptions=True)
    for given, result in zip(inputs, found, strict=True):
        assert isinstance(result, UsersError) == ("bad" in given["input"])
        if not isinstance(result, BaseException):
            assert result.content == (QUESTION | SyncChat()).invoke(given).content


async def test_a_stop_iteration_of_a_sync_leaf_is_what_it_is_in_the_plain_program(
    accelerator: Accelerator,
) -> None:
    class Stopping(BaseRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Any]:
            raise StopIteration

    kinds = []
    for retriever in (Stopping(), accelerate(Stopping(), accelerator=accelerator)):
        with pytest.raises(RuntimeError) as caught:
            await retriever.ainvoke("x")
        kinds.append((type(caught.value), type(caught.value.__cause__)))
    assert kinds[0] == kinds[1]

"""What only calls accelerated leaves does not count as one that passed the scheduler by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langchain_core.vectorstores import InMemoryVectorStore
from lc_fakes import AsyncChat, FakeEmbeddings, SyncChat

from langchain_rag_accel import accelerate
from langchain_rag_accel.coverage import Coverage, coverage
from rag_accel import Accelerator

Search = Callable[[Any], Any]

SEARCHES: dict[str, Search] = {
    "invoke": lambda retriever: retriever.invoke("one"),
    "batch": lambda retriever: retriever.batch(["one", "two"]),
    "ainvoke": lambda retriever: asyncio.run(retriever.ainvoke("one")),
    "abatch": lambda retriever: asyncio.run(retriever.abatch(["one", "two"])),
    "in a chain": lambda retriever: (RunnableLambda(str) | retriever).invoke("one"),
}


def _store() -> InMemoryVectorStore:
    store = InMemoryVectorStore(FakeEmbeddings())
    store.add_texts(["one", "two", "three"])
    return store


def _kinds(meter: Coverage) -> dict[str, tuple[int, int]]:
    return {row.kind: (row.seen, row.passed_by) for row in meter.rows()}


@pytest.mark.parametrize("way", ["similarity", "mmr"])
@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_a_stores_twin_is_the_leaf_of_the_retriever_around_it(
    search: Search, way: str, accelerator: Accelerator
) -> None:
    retriever = accelerate(_store(), accelerator=accelerator).as_retriever(search_type=way)
    with coverage() as meter:
        search(retriever)
    assert meter.passed_by == 0, str(meter)
    assert _kinds(meter).keys() == {"vector store", "embeddings"}


def test_a_search_of_a_twin_before_and_after_a_plain_retriever_is_its_own(
    accelerator: Accelerator,
) -> None:
    fast, plain = accelerate(_store(), accelerator=accelerator), _store().as_retriever()

    def program(_: str) -> None:
        fast.similarity_search("one")
        plain.invoke("two")
        fast.similarity_search("three")

    with coverage() as meter:
        RunnableLambda(program).invoke("x")
    assert _kinds(meter)["retriever"] == (1, 1)


def test_a_retriever_that_fails_is_left_like_one_that_returns(accelerator: Accelerator) -> None:
    fast = accelerate(_store(), accelerator=accelerator)

    class Failing(BaseRetriever):
        def _get_relevant_documents(
            self, query: str, *, run_manager: CallbackManagerForRetrieverRun
        ) -> list[Document]:
            raise ValueError(query)

    def program(_: str) -> None:
        with pytest.raises(ValueError, match="two"):
            Failing().invoke("two")
        fast.similarity_search("three")

    with coverage() as meter:
        RunnableLambda(program).invoke("x")
    assert _kinds(meter)["retriever"] == (1, 1)


def test_a_retriever_around_two_twins_is_no_leaf_either(accelerator: Accelerator) -> None:
    stores = [accelerate(_store(), accelerator=accelerator) for _ in range(2)]

    class Both(BaseRetriever):
        def _get_relevant_documents(
            self, query: str, *, run_manager: CallbackManagerForRetrieverRun
        ) -> list[Document]:
            return [found for one in stores for found in one.similarity_search(query, k=1)]

    with coverage() as meter:
        assert len(Both().invoke("one")) == 2
    assert meter.passed_by == 0, str(meter)


@tool
def ask(question: str) -> str:
    """Ask a model."""
    return str(SyncChat().invoke(question).content)


@tool
async def aask(question: str) -> str:
    """Ask a model."""
    return str((await AsyncChat().ainvoke(question)).content)


def _call(name: str) -> Any:
    return {"name": name, "args": {"question": "x"}, "id": "1", "type": "tool_call"}


GIVEN = {"question": "x"}
CALLS: dict[str, tuple[Any, Search]] = {
    "invoke": (ask, lambda fast: fast.invoke(GIVEN)),
    "call": (ask, lambda fast: fast.invoke(_call("ask"))),
    "run": (ask, lambda fast: fast.run(GIVEN)),
    "ainvoke": (aask, lambda fast: asyncio.run(fast.ainvoke(GIVEN))),
    "arun": (aask, lambda fast: asyncio.run(fast.arun(GIVEN))),
    "arun of a plain one": (ask, lambda fast: asyncio.run(fast.arun(GIVEN))),
    "bound": (ask, lambda fast: fast.bind().run(GIVEN)),
}


@pytest.mark.parametrize(("made", "call"), CALLS.values(), ids=CALLS)
def test_a_model_called_in_a_tool_is_scheduled_however_the_tool_is_called(
    made: Any, call: Search, accelerator: Accelerator
) -> None:
    fast = accelerate(made, accelerator=accelerator)
    with coverage() as meter:
        answer = call(fast)
    assert answer == call(made)
    assert _kinds(meter) == {"chat model": (1, 0)}

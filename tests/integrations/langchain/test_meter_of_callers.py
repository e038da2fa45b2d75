"""What only calls accelerated leaves does not count as one that passed the scheduler by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from lc_fakes import FakeEmbeddings

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

"""Programs on a loop that raises for blocking calls, as ``langgraph dev`` runs them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, TypedDict

import pytest
from blockbuster import blockbuster_ctx
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from langgraph.graph import END, START, StateGraph
from program_models import program_model

from langchain_rag_accel import RagAccelEmbeddings, accelerate
from rag_accel import shutdown
from rag_accel.accelerator import default_accelerator

CALLERS = 32


class _Store(VectorStore):
    @classmethod
    def from_texts(cls, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        time.sleep(0.001)
        return [Document(f"found {query}")]


class _AwaitedStore(_Store):
    async def asimilarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        await asyncio.sleep(0.001)
        return [Document(f"found {query}")]


def _embedding_store() -> InMemoryVectorStore:
    return InMemoryVectorStore.from_texts(
        [f"found {number}" for number in range(CALLERS)], RagAccelEmbeddings(program_model())
    )


STORES: dict[str, Callable[[], VectorStore]] = {
    "sync": _Store,
    "async": _AwaitedStore,
    "embeddings of an engine": _embedding_store,
}


class State(TypedDict):
    question: str
    answer: str


def graph_over(store: VectorStore) -> Any:
    async def search(state: State) -> dict[str, str]:
        (found,) = await store.asimilarity_search(state["question"], k=1)
        return {"answer": found.page_content}

    graph = StateGraph(State).add_node("search", search)
    return graph.add_edge(START, "search").add_edge("search", END).compile()


@pytest.fixture(autouse=True)
def _fresh_default() -> Iterator[None]:
    """Let the default accelerator be made where a test first needs it."""
    shutdown()
    yield
    shutdown()


async def _answers(graph: Any) -> list[str]:
    asked = ({"question": f"found {number}"} for number in range(CALLERS))
    found = await asyncio.gather(*map(graph.ainvoke, asked))
    return [state["answer"] for state in found]


@pytest.mark.parametrize("name", STORES)
def test_the_default_accelerator_may_be_made_on_the_loop(name: str) -> None:
    plain = graph_over(STORES[name]())
    fast = accelerate(plain)

    async def run() -> list[list[str]]:
        with blockbuster_ctx():
            found = [await _answers(plain), await _answers(fast)]
            await asyncio.to_thread(shutdown)
            return [*found, await _answers(fast)]

    expected, *others = asyncio.run(run())
    assert others == [expected, expected]
    assert default_accelerator().bypassed == {}


@pytest.mark.processes
def test_a_forked_child_makes_its_own_on_its_loop() -> None:
    fast = accelerate(graph_over(_AwaitedStore()))

    async def run() -> list[str]:
        with blockbuster_ctx():
            return await _answers(fast)

    expected = asyncio.run(run())
    child = os.fork()
    if child == 0:
        try:
            os._exit(asyncio.run(run()) != expected)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0

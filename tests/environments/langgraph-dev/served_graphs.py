"""Graphs that ``langgraph dev`` serves, plain and accelerated; one blocks the loop on purpose."""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypedDict

from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore
from langgraph.graph import END, START, StateGraph

from langchain_rag_accel import accelerate
from rag_accel import Accelerator

SEARCH_S = 0.02


class Store(VectorStore):
    """A store without coroutines, which LangChain calls in threads."""

    def __init__(self) -> None:
        self.num_running = self.most_running = 0

    @classmethod
    def from_texts(cls, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count a search among those that run."""
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        yield
        self.num_running -= 1

    def similarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        with self.running():
            time.sleep(SEARCH_S)
        return [Document(page_content=f"found {query}")]


class AwaitedStore(Store):
    """A store with a coroutine of its own."""

    async def asimilarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        with self.running():
            await asyncio.sleep(SEARCH_S)
        return [Document(page_content=f"found {query}")]


class BlockingStore(Store):
    """A store whose coroutine blocks the loop, which the server refuses."""

    async def asimilarity_search(self, query: str, k: int = 4, **kwargs: Any) -> list[Document]:
        return self.similarity_search(query, k)


class State(TypedDict):
    """A question, its answer, all answers of a thread and the most searches that ran at once."""

    question: str
    answer: str
    answers: Annotated[list[str], operator.add]
    most_running: int


def graph_over(store: Store) -> Any:
    """Return a compiled graph that searches a store on the server's loop."""

    async def search(state: State) -> dict[str, Any]:
        (found,) = await store.asimilarity_search(state["question"], k=1)
        text = found.page_content
        return {"answer": text, "answers": [text], "most_running": store.most_running}

    graph = StateGraph(State).add_node("search", search)
    return graph.add_edge(START, "search").add_edge("search", END).compile()


plain_awaited = graph_over(AwaitedStore())
plain_sync = graph_over(Store())
# The default accelerator is made where it is first used: on the server's loop.
awaited = accelerate(graph_over(AwaitedStore()))
sync = accelerate(graph_over(Store()))
bounded_awaited = accelerate(graph_over(AwaitedStore()), accelerator=Accelerator(max_requests=4))
bounded_sync = accelerate(graph_over(Store()), accelerator=Accelerator(max_requests=4))
blocking = accelerate(graph_over(BlockingStore()))

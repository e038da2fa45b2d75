"""A retriever's search of a vector store that the user names leaves the retriever's loop free."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from idle_accelerators import soon_idle
from li_graph_programs import aretrieve, filled, retrieve, vectors
from li_off_loop import AT_ONCE, knowing, meeting, own_settings
from li_programs import HashEmbedding, run_in_loop
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.graph_stores import SimplePropertyGraphStore
from llama_index.core.indices.property_graph import PGRetriever, VectorContextRetriever
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from pydantic import PrivateAttr

from llama_index_rag_accel import accelerate

QUESTIONS = [f"What does E{at} lead to?" for at in range(AT_ONCE)]
asker: ContextVar[str] = ContextVar("asker", default="nobody")
answered: ContextVar[str] = ContextVar("answered", default="not")


class WatchedVectors(SimpleVectorStore):
    """A vector store of the user's without an async search of its own."""

    _during: Any = PrivateAttr(default=None)
    _seen: list[tuple[int, str]] = PrivateAttr(default_factory=list)

    def query(self, query: Any, **kwargs: Any) -> Any:
        """Search, having noted the thread and the caller."""
        self._seen.append((threading.get_ident(), asker.get()))
        answered.set("yes")
        if self._during is not None:
            self._during("")
        return super().query(query, **kwargs)


class OwnAsyncVectors(WatchedVectors):
    """A vector store that has an async search of its own."""

    async def aquery(self, query: Any, **kwargs: Any) -> Any:
        """Search on the loop."""
        return self.query(query, **kwargs)


def of_graph(store: Any) -> Any:
    """Return a retriever from a graph whose entities a vector store finds."""
    embedding = HashEmbedding()
    store.data = vectors(embedding).data
    graph = filled(SimplePropertyGraphStore())
    sub = VectorContextRetriever(
        graph, include_text=False, embed_model=embedding, vector_store=store
    )
    return PGRetriever([sub])


def of_index(store: Any) -> Any:
    """Return a retriever of an index over a vector store."""
    nodes = [TextNode(text=f"E{at}", id_=f"c{at}") for at in range(9)]
    context = StorageContext.from_defaults(vector_store=store)
    return VectorStoreIndex(
        nodes, storage_context=context, embed_model=HashEmbedding()
    ).as_retriever()


RETRIEVERS: dict[str, Callable[[Any], Any]] = {"of a graph": of_graph, "of an index": of_index}
every_retriever = pytest.mark.parametrize("make", RETRIEVERS.values(), ids=RETRIEVERS)


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Set models that threads may share."""
    with own_settings():
        yield


async def all_at_once(program: Any) -> list[Any]:
    """Return what each question finds; they are asked at once."""
    return await asyncio.gather(*(aretrieve(program, question) for question in QUESTIONS))


@every_retriever
def test_searches_of_a_named_class_overlap_on_one_loop(make: Any) -> None:
    store = WatchedVectors()
    program = make(store)
    plain = [retrieve(program, question) for question in QUESTIONS]
    with knowing(WatchedVectors, HashEmbedding) as accelerator:
        fast = accelerate(program, accelerator=accelerator)
        store._during = meeting()
        assert run_in_loop(all_at_once(fast)) == plain


async def _threads(program: Any, store: Any) -> tuple[set[int], int]:
    store._seen.clear()
    await program.aretrieve(QUESTIONS[0])
    return {thread for thread, _ in store._seen}, threading.get_ident()


@every_retriever
@pytest.mark.parametrize(
    ("cls", "named", "off_loop"),
    [
        (WatchedVectors, False, True),
        (WatchedVectors, True, False),
        (OwnAsyncVectors, True, True),
    ],
    ids=["not named", "offload_blocking=False", "an async search of its own"],
)
def test_any_other_search_stays_on_its_loop(
    make: Any, cls: Any, named: bool, off_loop: bool
) -> None:
    store = cls()
    program = make(store)
    with knowing(*((cls,) if named else ()), offload_blocking=off_loop) as accelerator:
        fast = accelerate(program, accelerator=accelerator)
        threads, loop = run_in_loop(_threads(fast, store))
    assert threads == {loop}


@every_retriever
def test_an_error_of_the_store_is_raised_and_the_others_find_theirs(make: Any) -> None:
    def fail_for_one(prompt: str) -> None:
        if asker.get() == "third":
            raise LookupError("no such collection")

    async def ask(program: Any, place: int) -> Any:
        asker.set("third" if place == 3 else "another")
        return await aretrieve(program, QUESTIONS[place])

    async def all_of_them(program: Any) -> list[Any]:
        asked = (ask(program, place) for place in range(AT_ONCE))
        return await asyncio.gather(*asked, return_exceptions=True)

    store = WatchedVectors()
    program = make(store)
    plain = [retrieve(program, question) for question in QUESTIONS]
    with knowing(WatchedVectors) as accelerator:
        fast = accelerate(program, accelerator=accelerator)
        store._during = fail_for_one
        found = run_in_loop(all_of_them(fast))
        assert soon_idle(accelerator)
    error = found.pop(3)
    assert (type(error), str(error)) == (LookupError, "no such collection")
    assert found == plain[:3] + plain[4:]

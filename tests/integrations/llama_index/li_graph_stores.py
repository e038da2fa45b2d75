"""Retrievers over property graph stores: what each gives or raises, plain and accelerated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from idle_accelerators import soon_idle
from li_graph_programs import GraphLLM, aretrieve, filled, retrieve
from li_programs import run_in_loop
from llama_index.core.indices.property_graph import LLMSynonymRetriever, PGRetriever
from neo4j_server import BoltServer

from llama_index_rag_accel import accelerate
from rag_accel import Accelerator

#: of tests of LlamaIndex's store over a real server
NEO4J_MARKS = [
    pytest.mark.neo4j,
    pytest.mark.usefixtures("shared_models"),
    # The store fills itself by what pydantic has replaced.
    pytest.mark.filterwarnings("ignore:The `dict` method is deprecated"),
]


@contextmanager
def opened(server: BoltServer, **settings: Any) -> Iterator[Any]:
    """Give a store on a server; its schema is not read unless the settings say so."""
    from llama_index.graph_stores.neo4j import Neo4jPropertyGraphStore

    arguments: dict[str, Any] = {
        "username": server.user,
        "password": server.password,
        "url": server.uri,
        "refresh_schema": False,
    }
    store = Neo4jPropertyGraphStore(**arguments | settings)
    try:
        yield store
    finally:
        store.close()
        run_in_loop(store._async_driver.close())  # which nobody uses or closes upstream


@contextmanager
def opened_and_filled(server: BoltServer) -> Iterator[Any]:
    """Give a store whose graph and indexes are complete."""
    with opened(server) as store:
        filled(store)
        store.structured_query("CALL db.awaitIndexes(60)")
        yield store


def words(store: Any, given: str, **options: Any) -> PGRetriever:
    """Return a retriever whose model gives these words."""
    llm = GraphLLM(words=given)
    return PGRetriever([LLMSynonymRetriever(store, include_text=False, llm=llm, **options)])


def outcome(find: Callable[[], Any]) -> Any:
    """Return what a call gives, or the class and the text of its error."""
    try:
        return find()
    except Exception as error:
        return type(error), str(error)


def same(program: Any, accelerator: Accelerator, times: int = 1) -> Any:
    """Return the outcome of a program, once it was seen to be the same accelerated."""
    plain = outcome(lambda: retrieve(program))
    fast = accelerate(program, accelerator=accelerator)
    for _ in range(times):
        assert outcome(lambda: retrieve(fast)) == plain
        assert outcome(lambda: run_in_loop(aretrieve(fast))) == plain
    assert soon_idle(accelerator)
    return plain


def outcomes_on_one_loop(programs: Sequence[Any], times: int = 1) -> list[Any]:
    """Return the outcomes of programs that all run at once, the whole list so many times."""

    async def at_once() -> list[Any]:
        asked = (aretrieve(one) for one in [*programs] * times)
        return await asyncio.gather(*asked, return_exceptions=True)

    return [
        (type(one), str(one)) if isinstance(one, Exception) else one
        for one in run_in_loop(at_once())
    ]


def same_at_once(programs: Sequence[Any], accelerator: Accelerator, times: int = 4) -> list[Any]:
    """Return the outcome of each program, once all at once have had the same, accelerated."""
    plain = [outcome(lambda one=one: retrieve(one)) for one in programs]
    fast = [accelerate(one, accelerator=accelerator) for one in programs]
    assert outcomes_on_one_loop(fast, times) == plain * times
    assert soon_idle(accelerator)
    return plain

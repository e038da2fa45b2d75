"""Programs over a real Neo4j by LlamaIndex's own store give what they give plainly."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from idle_accelerators import soon_idle

pytest.importorskip("llama_index.graph_stores.neo4j")

from li_graph_programs import (
    GraphParts,
    aretrieve,
    programs,
    retrieve,
    retriever,
)
from li_graph_stores import NEO4J_MARKS, same, words
from li_off_loop import PATIENCE_S, knowing
from li_programs import run_in_loop
from llama_index.core.graph_stores.types import Relation
from llama_index.graph_stores.neo4j import Neo4jPropertyGraphStore

from llama_index_rag_accel import accelerate
from llama_index_rag_accel.concurrency import offload
from llama_index_rag_accel.coverage import coverage
from rag_accel import Accelerator

AT_ONCE = 16

pytestmark = NEO4J_MARKS


@pytest.fixture
def store(graph_store: Neo4jPropertyGraphStore) -> Neo4jPropertyGraphStore:
    """Return a store that is filled, with dates, and knows its schema."""
    graph_store.structured_query("MATCH ()-[r]->() SET r.since = date('2020-02-29')")
    graph_store.refresh_schema()
    return graph_store


def test_accelerated_programs_do_as_the_plain_ones(
    store: Neo4jPropertyGraphStore, accelerator: Accelerator
) -> None:
    for name, program in programs(True).items():
        bare = program.make(GraphParts(store))
        plain = program.evidence(bare)
        assert plain.given, name
        fast = accelerate(bare, accelerator=accelerator)
        for _ in range(2):
            with coverage() as meter:
                assert program.evidence(fast) == plain, name
            assert meter.passed_by == 0, f"{name} {meter}"
    assert soon_idle(accelerator)


# Searches leave the loop -------------------------------------------------------------------------


@contextmanager
def searches_that_meet(store: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the first queries of the store's driver go on once all of them have begun."""
    barrier, lock, places = threading.Barrier(AT_ONCE), threading.Lock(), iter(range(AT_ONCE))
    execute = store._driver.execute_query

    def meet(*args: Any, **kwargs: Any) -> Any:
        with lock:
            is_first = next(places, None) is not None
        if is_first:
            barrier.wait(PATIENCE_S)
        with lock:  # the driver itself may fail where threads share it
            return execute(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(store._driver, "execute_query", meet)
        yield


def test_programs_on_one_loop_overlap_and_find_what_each_finds_alone(
    store: Neo4jPropertyGraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = [f"What does E{at} lead to?" for at in range(AT_ONCE)]
    program = retriever(GraphParts(store), "synonyms", "context", text=True)
    plain = [retrieve(program, question) for question in questions]

    async def all_at_once(fast: Any) -> list[Any]:
        return await asyncio.gather(*(aretrieve(fast, question) for question in questions))

    with knowing(type(store)) as accelerator, searches_that_meet(store, monkeypatch):
        assert run_in_loop(all_at_once(accelerate(program, accelerator=accelerator))) == plain


def _passes_off_loop() -> bool:
    """Tell whether the calls that lead here pass what may make a blocking call in a thread."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals["__name__"] == offload.__name__:
            return True
        frame = frame.f_back
    return False


@pytest.mark.parametrize("is_named", [False, True])
def test_a_read_of_a_retriever_runs_directly_unless_the_class_is_named(
    store: Neo4jPropertyGraphStore, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    program = retriever(GraphParts(store), "synonyms")
    plain = retrieve(program)
    passed, execute = list[bool](), store._driver.execute_query

    def noted(*args: Any, **kwargs: Any) -> Any:
        passed.append(_passes_off_loop())
        return execute(*args, **kwargs)

    monkeypatch.setattr(store._driver, "execute_query", noted)
    with knowing(*((Neo4jPropertyGraphStore,) if is_named else ())) as accelerator:
        found = run_in_loop(aretrieve(accelerate(program, accelerator=accelerator)))
    assert found == plain
    assert set(passed) == {is_named}


def test_edits_between_requests_are_seen(
    graph_store: Neo4jPropertyGraphStore, accelerator: Accelerator
) -> None:
    program = words(graph_store, "E1", path_depth=1)
    before = same(program, accelerator)
    graph_store.upsert_relations([Relation(label="new", source_id="E1", target_id="E2")])
    assert same(program, accelerator) != before
    graph_store.delete(entity_names=["E1"])
    assert same(program, accelerator) == []

"""Programs over a real Neo4j by LlamaIndex's own store give what they give plainly."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from idle_accelerators import soon_idle

pytest.importorskip("llama_index.graph_stores.neo4j")

from li_graph_programs import (
    GraphLLM,
    GraphParts,
    aretrieve,
    programs,
    retrieve,
    retriever,
)
from li_graph_stores import NEO4J_MARKS, opened, outcome, same
from li_off_loop import PATIENCE_S, knowing
from li_programs import HashEmbedding, run_in_loop
from llama_index.core.graph_stores.types import EntityNode
from llama_index.core.vector_stores.types import VectorStoreQuery
from llama_index.graph_stores.neo4j import Neo4jPropertyGraphStore
from neo4j.exceptions import CypherSyntaxError, ServiceUnavailable, SessionExpired
from neo4j_server import BoltServer
from relay import Relay

from llama_index_rag_accel import accelerate, activate, explain
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


def test_activated_programs_do_as_the_plain_ones(
    store: Neo4jPropertyGraphStore, accelerator: Accelerator
) -> None:
    made = {name: (one, one.make(GraphParts(store))) for name, one in programs(True).items()}
    plain = {name: one.evidence(obj) for name, (one, obj) in made.items()}
    with activate(accelerator):
        for name, (program, obj) in made.items():
            with coverage() as meter:
                assert program.evidence(obj) == plain[name], name
            assert meter.passed_by == 0, f"{name} {meter}"


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


READS: dict[str, Callable[[Any], Any]] = {
    "aget": lambda store: store.aget(ids=["E1", "E2"]),
    "aget_triplets": lambda store: store.aget_triplets(entity_names=["E1"]),
    "aget_rel_map": lambda store: store.aget_rel_map([EntityNode(name="E1")], limit=1000),
    "avector_query": lambda store: store.avector_query(
        VectorStoreQuery(HashEmbedding().get_text_embedding("E1"), similarity_top_k=3)
    ),
}


@pytest.mark.cross_product(keep=2)
@pytest.mark.parametrize("name", READS)
def test_reads_of_one_loop_overlap_where_the_class_is_named(
    store: Neo4jPropertyGraphStore, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async def at_once(asked: Any) -> list[Any]:
        return await asyncio.gather(*(READS[name](asked) for _ in range(AT_ONCE)))

    plain = run_in_loop(at_once(store))
    with knowing(type(store)) as accelerator:
        fast = accelerate(store, accelerator=accelerator)
        with searches_that_meet(store, monkeypatch):
            assert run_in_loop(at_once(fast)) == plain
        assert soon_idle(accelerator)


@pytest.mark.cross_product(keep=2)
@pytest.mark.parametrize("name", READS)
def test_reads_stay_on_their_loop_unless_the_class_is_named(
    store: Neo4jPropertyGraphStore,
    accelerator: Accelerator,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    fast = accelerate(store, accelerator=accelerator)
    assert run_in_loop(_threads_of_queries(fast, store, monkeypatch, READS[name])) == set()


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


async def _make(store: Any) -> None:
    await store.astructured_query("CREATE (n:Made {at: $at})", {"at": 1})


async def _threads_of_queries(
    asked: Any,
    store: Any,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[Any], Any] = _make,
) -> set[int]:
    threads, execute = set[int](), store._driver.execute_query

    def noted(*args: Any, **kwargs: Any) -> Any:
        threads.add(threading.get_ident())
        return execute(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(store._driver, "execute_query", noted)
        await ask(asked)
    return threads - {threading.get_ident()}


@pytest.mark.parametrize("is_named", [False, True])
def test_any_query_leaves_the_loop_where_the_user_names_the_class(
    store: Neo4jPropertyGraphStore, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    with knowing(*((Neo4jPropertyGraphStore,) if is_named else ())) as accelerator:
        fast = accelerate(store, accelerator=accelerator)
        elsewhere = run_in_loop(_threads_of_queries(fast, store, monkeypatch))
    assert bool(elsewhere) is is_named
    assert store.structured_query("MATCH (n:Made) RETURN count(*) AS count") == [{"count": 1}]


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


def test_reads_of_a_retriever_by_names_are_told_as_parts_of_its_call(
    store: Neo4jPropertyGraphStore, accelerator: Accelerator
) -> None:
    fast = accelerate(retriever(GraphParts(store), "synonyms"), accelerator=accelerator)

    async def metered() -> Any:
        with coverage() as meter:
            await aretrieve(fast)
            return meter

    meter = run_in_loop(metered())
    assert {row.kind: row.scheduled for row in meter.rows()} == {
        "language model": 1,
        "retriever": 1,
    }
    assert meter.passed_by == 0, str(meter)
    said = explain(fast)
    assert "Neo4jPropertyGraphStore: part of the leaf that holds it: runs within its call" in said
    assert "Neo4jPropertyGraphStore.aget blocks its loop: thread_safe_classes does not" in said


def test_a_subclass_of_the_user_s_keeps_its_loop(
    store: Neo4jPropertyGraphStore, accelerator: Accelerator
) -> None:
    class OwnStore(Neo4jPropertyGraphStore):
        def get(self, *args: Any, **kwargs: Any) -> Any:
            return [threading.get_ident()]

    own = OwnStore.__new__(OwnStore)
    vars(own).update(vars(store))

    async def threads() -> Any:
        return await accelerate(own, accelerator=accelerator).aget(), threading.get_ident()

    found, loop = run_in_loop(threads())
    assert found == [loop]
    del own._driver  # that of the store, which closes it


# Errors ------------------------------------------------------------------------------------------


def test_an_invalid_query_of_a_model_raises_the_driver_s_error(
    store: Neo4jPropertyGraphStore, accelerator: Accelerator
) -> None:
    program = retriever(GraphParts(store, GraphLLM(cypher="MATCH (n RETURN n")), "text to Cypher")
    assert same(program, accelerator)[0] is CypherSyntaxError


def test_a_server_that_goes_away_raises_the_driver_s_error(
    neo4j_server: BoltServer, store: Neo4jPropertyGraphStore, accelerator: Accelerator
) -> None:
    host, _, port = neo4j_server.uri.rpartition("//")[2].partition(":")
    relay = Relay((host, int(port)))
    try:
        with opened(
            neo4j_server, url=relay.uri, max_transaction_retry_time=0, connection_timeout=2
        ) as gone:
            fast = accelerate(retriever(GraphParts(gone), "synonyms"), accelerator=accelerator)
            assert run_in_loop(aretrieve(fast))
            relay.cut()
            kind, _ = outcome(lambda: run_in_loop(aretrieve(fast)))
            assert issubclass(kind, ServiceUnavailable | SessionExpired)
    finally:
        relay.cut()
    assert soon_idle(accelerator)

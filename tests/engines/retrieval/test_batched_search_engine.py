"""The engine that sends searches of a remote store which wait at the same time in one call."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import pytest

from rag_accel.engine_api import (
    Engine,
    EngineOutput,
    EngineRequest,
    PrimitiveKind,
    SearchQuery,
    StepBudget,
    WorkId,
)
from rag_accel.engines.retrieval.batched_search_engine import (
    ASK_ALONE,
    BatchedSearchEngine,
    StoreQuery,
)
from rag_accel.errors import ClosedError, EngineError
from rag_accel.testing.conformance import EngineContract

PATIENCE_S = 20.0
_caller: ContextVar[str] = ContextVar("_caller", default="nobody")


class Store:
    """Answer calls, and note them.

    Attributes:
        calls: the queries of each.
        gate: calls wait for it.
        seen: a permit for each call that has begun.
        fails: what a call with such a query raises.
        callers: in whose context each call runs.
    """

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.seen = threading.Semaphore(0)
        self.fails: dict[str, BaseException] = {}
        self.callers: list[str] = []

    def __call__(self, queries: list[str]) -> list[str]:
        self.calls.append(queries)
        self.callers.append(_caller.get())
        self.seen.release()
        assert self.gate.wait(PATIENCE_S)
        for query in queries:
            if query in self.fails:
                raise self.fails[query]
        return [f"found {query}" for query in queries]


def work(id: str, store: Any, key: Any = "k", most: int = 64) -> EngineRequest:
    """Return a search for its own name."""
    query = StoreQuery(id, key, store, most)
    return EngineRequest(WorkId(id), "r", PrimitiveKind.SEARCHING, query)


def finish(engine: Engine, *ids: str) -> dict[str, EngineOutput]:
    """Step until these have ended."""
    found: dict[str, EngineOutput] = {}
    for _ in range(1000):
        found.update((output.id, output) for output in engine.step(StepBudget(time_s=5.0)))
        if found.keys() >= set(ids):
            return found
    raise AssertionError(f"still at work: {set(ids) - found.keys()}")


def values(engine: Engine, *ids: str) -> list[Any]:
    found = finish(engine, *ids)
    return [found[id].value for id in ids]


def begin(engine: Engine, store: Store, *work: EngineRequest, calls: int = 1) -> None:
    """Submit work, and return once so many calls of it are in flight at a closed gate."""
    store.gate.clear()
    engine.submit(work)
    assert engine.step(StepBudget(time_s=0.0)) == []
    for _ in range(calls):
        assert store.seen.acquire(timeout=PATIENCE_S)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def engine(store: Store) -> Iterator[BatchedSearchEngine]:
    made = BatchedSearchEngine()
    yield made
    store.gate.set()
    made.close()


class TestContract(EngineContract):
    def make_engine(self) -> Engine:
        return BatchedSearchEngine()

    def make_request(self, number: int) -> EngineRequest:
        return work(f"w{number}", Store())

    def make_bad_request(self) -> EngineRequest:
        return replace(work("bad", Store()), payload=SearchQuery([1.0], 1))


def test_searches_that_come_during_a_call_share_the_next(
    engine: BatchedSearchEngine, store: Store
) -> None:
    begin(engine, store, work("a", store))
    engine.submit([work("b", store)])
    engine.submit([work("c", store)])
    assert engine.step(StepBudget(time_s=0.0)) == []
    store.gate.set()
    assert values(engine, "a", "b", "c") == ["found a", "found b", "found c"]
    assert store.calls == [["a"], ["b", "c"]]
    assert dict(engine.counts) == {
        "store_calls": 2,
        "searches_in_store_calls": 3,
        "failed_store_calls": 0,
    }
    assert engine.describe_parts() == ("3 searches in 2 calls of its store",)


def test_searches_do_not_wait_for_a_call_that_hangs(store: Store) -> None:
    engine = BatchedSearchEngine(patience_s=0.01)
    begin(engine, store, work("a", store))
    engine.submit([work("b", Store())])
    assert values(engine, "b") == ["found b"]
    store.gate.set()
    assert values(engine, "a") == ["found a"]
    engine.close()


@pytest.mark.parametrize("change", [{"key": "other"}, {"namespace": "other"}])
def test_searches_of_other_keys_or_tenants_share_no_call_and_wait_for_none(
    engine: BatchedSearchEngine, store: Store, change: dict[str, str]
) -> None:
    other = work("b", store, change.get("key", "k"))
    other = replace(other, namespace=change.get("namespace", ""))
    begin(engine, store, work("a", store), other, calls=2)
    assert sorted(store.calls) == [["a"], ["b"]]


def test_more_searches_than_a_call_may_hold_are_several_calls_at_the_same_time(
    engine: BatchedSearchEngine, store: Store
) -> None:
    ids = [f"s{number}" for number in range(5)]
    begin(engine, store, *(work(id, store, most=2) for id in ids), calls=3)
    assert sorted(store.calls) == [["s0", "s1"], ["s2", "s3"], ["s4"]]
    store.gate.set()
    assert values(engine, *ids) == [f"found {id}" for id in ids]


@pytest.mark.parametrize("error", [ValueError("a and b"), SystemExit()])
def test_each_search_of_a_failed_call_is_to_be_made_alone_and_the_next_call_starts(
    engine: BatchedSearchEngine, store: Store, error: BaseException
) -> None:
    store.fails["b"] = error
    engine.submit([work("a", store), work("b", store)])
    assert values(engine, "a", "b") == [ASK_ALONE, ASK_ALONE]
    assert engine.counts["failed_store_calls"] == 1
    engine.submit([work("c", store)])
    assert values(engine, "c") == ["found c"]


def test_results_for_another_number_of_queries_are_nobodys(engine: BatchedSearchEngine) -> None:
    engine.submit([work("a", lambda queries: ["one"]), work("b", lambda queries: ["one"])])
    assert values(engine, "a", "b") == [ASK_ALONE, ASK_ALONE]


def test_a_cancelled_search_leaves_the_next_call_and_its_id_can_come_again(
    engine: BatchedSearchEngine, store: Store
) -> None:
    begin(engine, store, work("a", store))
    engine.submit([work("b", store), work("c", store)])
    engine.cancel([WorkId("a"), WorkId("b")])
    engine.submit([work("a", store)])
    store.gate.set()
    assert values(engine, "c", "a") == ["found c", "found a"]
    assert store.calls == [["a"], ["c", "a"]]


def test_a_call_runs_in_no_callers_context(engine: BatchedSearchEngine, store: Store) -> None:
    token = _caller.set("me")
    try:
        engine.submit([work("a", store)])
        values(engine, "a")
    finally:
        _caller.reset(token)
    assert store.callers == ["nobody"]


def test_a_key_without_a_hash_and_a_call_of_no_queries_are_refused_alone(
    engine: BatchedSearchEngine, store: Store
) -> None:
    engine.submit([work("odd", store, {"a": 1}), work("empty", store, most=0), work("a", store)])
    found = finish(engine, "odd", "empty", "a")
    assert isinstance(found["odd"].error, TypeError)
    assert isinstance(found["empty"].error, EngineError)
    assert found["a"].value == "found a"


def test_a_closed_engine_takes_nothing(store: Store) -> None:
    engine = BatchedSearchEngine()
    engine.close()
    engine.close()
    with pytest.raises(ClosedError, match="closed"):
        engine.submit([work("a", store)])

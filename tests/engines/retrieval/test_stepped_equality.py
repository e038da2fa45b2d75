"""Whatever happens between steps, each search ends with what a whole search finds at its end.

Whole numbers make every score exact and ties frequent; documents that are all one point make the
candidates kept so far too few again and again.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from rag_accel.engine_api import (
    Document,
    EngineRequest,
    PrimitiveKind,
    SearchQuery,
    StepBudget,
    WorkId,
)
from rag_accel.engines.retrieval import DocumentIndex, IndexKind, IndexSpec, Metric, RetrievalEngine
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors
from rag_accel.engines.retrieval.vectors.vectors import SearchScope
from rag_accel.testing import ManualClock

DIMENSION = 3

_METRICS = st.sampled_from(Metric)
_VECTOR = st.tuples(*[st.integers(-2, 2)] * DIMENSION)
_K = st.one_of(st.integers(-1, 12), st.sampled_from([30, 200]))
_WHERE = st.sampled_from([None, None, {}, {"x": 0}, {"x": 1}, {"x": [2]}, {"x": "absent"}])
_NPROBE = st.sampled_from([None, 1, 2, 5, 100])
_QUERY = st.builds(SearchQuery, _VECTOR, _K, _WHERE, _NPROBE)
_TIME = st.sampled_from([None, 0.0, 0.0, 10.0, 40.0, 1000.0])


class Bench:
    """Hold an engine whose clock is moved by its scans: one second for each vector compared."""

    def __init__(self, metric: Metric, num_documents: int, seed: int, is_tied: bool) -> None:
        spec = IndexSpec(DIMENSION, metric, IndexKind.IVF, num_clusters=8, nprobe=3, train_size=30)
        self.index = DocumentIndex(spec)
        random = np.random.default_rng(seed)
        rows = random.integers(-2, 3, (num_documents, DIMENSION))
        rows[num_documents // 3 if is_tied else num_documents :] = 1
        documents = [Document(f"d{n}", "", {"x": [0, 1, [2]][n % 3]}) for n in range(len(rows))]
        self.index.add(documents, rows)
        assert self.index.is_trained
        self.clock = ManualClock()
        self.engine = RetrievalEngine(self.index, sliced_from_s=0.0, clock=self.clock)

    def patched(self) -> Any:
        """Return a context in which FAISS moves the clock."""
        scan, fetch = IvfVectors.scan, IvfVectors.fetch

        def timed(vectors: IvfVectors, queries: Any, width: int, clusters: Any, sel: Any) -> Any:
            self.clock.advance(float(vectors.cluster_sizes()[clusters[clusters >= 0]].sum()))
            return scan(vectors, queries, width, clusters, sel)

        def timed_whole(vectors: IvfVectors, queries: Any, count: int, scope: SearchScope) -> Any:
            num_visited = vectors.num_visited(scope.allowed is not None, scope.nprobe)
            self.clock.advance(len(queries) * num_visited * len(vectors) / vectors.num_clusters)
            return fetch(vectors, queries, count, scope)

        return mock.patch.multiple(IvfVectors, scan=timed, fetch=timed_whole)

    def warm_up(self) -> None:
        """Let the engine learn what this clock makes of its scans."""
        for time_s in (1e9, None):
            for where in (None, {"x": 0}):
                self.submit("warm", SearchQuery([0.0] * DIMENSION, 1, where))
                while not self.step(time_s):
                    pass

    def submit(self, id: str, query: SearchQuery) -> None:
        self.engine.submit([EngineRequest(WorkId(id), "r", PrimitiveKind.SEARCHING, query)])

    def step(self, time_s: float | None) -> dict[str, Any]:
        outputs = self.engine.step(StepBudget(time_s))
        assert all(output.kind == "final" for output in outputs), outputs
        assert len({output.id for output in outputs}) == len(outputs)
        return {output.id: output.value for output in outputs}

    def whole(self, query: SearchQuery) -> tuple[Any, ...]:
        return tuple(self.index.search([query.vector], query.k, query.where, query.nprobe)[0])


@settings(max_examples=60, deadline=None)
@given(
    metric=_METRICS,
    seed=st.integers(0, 5),
    is_tied=st.booleans(),
    queries=st.lists(_QUERY, min_size=1, max_size=8),
    times=st.lists(_TIME, min_size=1, max_size=4),
)
def test_searches_read_piece_by_piece_find_what_they_find_whole(
    metric: Metric, seed: int, is_tied: bool, queries: list[SearchQuery], times: list[Any]
) -> None:
    bench = Bench(metric, 60, seed, is_tied)
    with bench.patched():
        bench.warm_up()
        found: dict[str, Any] = {}
        for number, query in enumerate(queries):
            bench.submit(str(number), query)
            found |= bench.step(times[number % len(times)])
        for _ in range(1000):
            if len(found) == len(queries):
                break
            found |= bench.step(0.0)
    assert found == {str(number): bench.whole(query) for number, query in enumerate(queries)}


@pytest.mark.parametrize("metric", list(Metric))
@pytest.mark.parametrize("nprobe", [1, 7, 16])
def test_float_searches_find_what_they_find_whole(metric: Metric, nprobe: int) -> None:
    random = np.random.default_rng(0)
    spec = IndexSpec(32, metric, IndexKind.IVF, num_clusters=16, train_size=600)
    index = DocumentIndex(spec)
    rows = random.standard_normal((600, 32)).astype(np.float32)
    index.add([Document(str(n), "") for n in range(600)], rows)
    engine = RetrievalEngine(index, sliced_from_s=0.0)
    queries = random.standard_normal((10, 32)).astype(np.float32)
    found: dict[str, Any] = {}
    for number, query in enumerate(queries):
        work = SearchQuery(query, 5 + number, None, nprobe)
        engine.submit([EngineRequest(WorkId(str(number)), "r", PrimitiveKind.SEARCHING, work)])
    while len(found) < len(queries):
        found |= {output.id: output.value for output in engine.step(StepBudget(0.0))}
    for number, query in enumerate(queries):
        (whole,) = index.search(query[None], 5 + number, None, nprobe)
        assert found[str(number)] == tuple(whole)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("num_queries", [1, 7, 8, 13, 30])
def test_the_number_of_threads_changes_nothing(threads: int, num_queries: int) -> None:
    random = np.random.default_rng(0)
    spec = IndexSpec(16, kind=IndexKind.IVF, num_clusters=12, train_size=400)
    index = DocumentIndex(spec)
    index.add([Document(str(n), "") for n in range(400)], random.standard_normal((400, 16)))
    engine = RetrievalEngine(index, max_threads=threads, sliced_from_s=0.0)
    queries = random.standard_normal((num_queries, 16)).astype(np.float32)
    found: dict[str, Any] = {}
    for number, query in enumerate(queries):
        work = SearchQuery(query, 5, None, 1 + number % 12)
        engine.submit([EngineRequest(WorkId(str(number)), "r", PrimitiveKind.SEARCHING, work)])
    while len(found) < num_queries:
        outputs = engine.step(StepBudget(0.0, threads))
        found |= {output.id: output.value for output in outputs}
    for number, query in enumerate(queries):
        (whole,) = index.search(query[None], 5, None, 1 + number % 12)
        assert found[str(number)] == tuple(whole)


class StepsAgainstWholeSearch(RuleBasedStateMachine):
    """Compare each search that ends with a whole one at that moment."""

    @initialize(metric=_METRICS, seed=st.integers(0, 3), is_tied=st.booleans())
    def create(self, metric: Metric, seed: int, is_tied: bool) -> None:
        self.bench = Bench(metric, 60, seed, is_tied)
        self.patch = self.bench.patched()
        self.patch.start()
        self.bench.warm_up()
        self.queries: dict[str, SearchQuery] = {}
        self.number = 0

    @rule(query=_QUERY)
    def submit(self, query: SearchQuery) -> None:
        self.number += 1
        id = f"s{self.number}"
        self.queries[id] = query
        self.bench.submit(id, query)

    @rule(time_s=_TIME)
    def step(self, time_s: float | None) -> None:
        self._check(self.bench.step(time_s))

    @rule(place=st.integers(0, 9))
    def cancel(self, place: int) -> None:
        ids = list(self.queries)[place : place + 1]
        self.bench.engine.cancel([WorkId(id) for id in ids])
        for id in ids:
            del self.queries[id]

    @rule(number=st.integers(0, 70), vector=_VECTOR, value=st.sampled_from([0, 1, [2]]))
    def put(self, number: int, vector: Any, value: Any) -> None:
        self.bench.index.add([Document(f"d{number}", "new", {"x": value})], [vector])

    @rule(first=st.integers(0, 60), count=st.sampled_from([1, 5, 60]))
    def delete(self, first: int, count: int) -> None:
        self.bench.index.delete(f"d{number}" for number in range(first, first + count))

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        try:
            for _ in range(1000):
                if not self.queries:
                    break
                self._check(self.bench.step(0.0))
            assert not self.queries, "searches that never end"
            assert not self.bench.step(None)
        finally:
            self.patch.stop()

    def _check(self, found: dict[str, Any]) -> None:
        for id, value in found.items():
            assert value == self.bench.whole(self.queries.pop(id))


TestStepsAgainstWholeSearch = StepsAgainstWholeSearch.TestCase
TestStepsAgainstWholeSearch.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None
)

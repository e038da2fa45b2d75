"""A crowd that shares a scan finds what each of its searches finds alone, whatever changes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from rag_accel.engine_api import (
    Document,
    EngineOutput,
    EngineRequest,
    PrimitiveKind,
    SearchQuery,
    StepBudget,
    WorkId,
)
from rag_accel.engines.retrieval import (
    DocumentIndex,
    IndexKind,
    IndexSpec,
    Metric,
    RetrievalEngine,
    shared_scans,
)
from rag_accel.engines.retrieval.crossover import Crossover, Way
from rag_accel.engines.retrieval.kept_codes import QUIET
from rag_accel.errors import ConfigError
from rag_accel.testing import ManualClock

pytest.importorskip("torch")

DIMENSION = 4


def make_index(metric: Metric, count: int, seed: int = 0, style: str = "whole") -> DocumentIndex:
    spec = IndexSpec(DIMENSION, metric, IndexKind.IVF, num_clusters=8, nprobe=3, train_size=30)
    index = DocumentIndex(spec)
    index.add(make_documents(count), make_vectors(count, seed, style))
    return index


def make_documents(count: int, first: int = 0) -> list[Document]:
    return [Document(f"d{n}", "", {"x": n % 3}) for n in range(first, first + count)]


def make_vectors(count: int, seed: int = 0, style: str = "whole") -> Any:
    random = np.random.default_rng(seed)
    if style == "whole":
        return random.integers(-2, 3, (count, DIMENSION)).astype(np.float32)
    vectors = random.standard_normal((count, DIMENSION)).astype(np.float32)
    if style == "duplicates":
        vectors = vectors[random.integers(0, 1 + count // 10, count)]
    if style == "adversarial":
        scale = random.choice([0, 1e-42, 1e-20, 1, 1, 1e10], count).astype(np.float32)
        vectors *= scale[:, None]
    return vectors


def search(engine: RetrievalEngine, *queries: SearchQuery) -> list[EngineOutput]:
    """Search in one step; return the outputs in the order of the queries."""
    names = [WorkId(f"w{number}") for number in range(len(queries))]
    engine.submit(
        [
            EngineRequest(name, "r", PrimitiveKind.SEARCHING, query)
            for name, query in zip(names, queries, strict=True)
        ]
    )
    outputs = {output.id: output for output in engine.step(StepBudget())}
    return [outputs[name] for name in names]


def check(engine: RetrievalEngine, *queries: SearchQuery) -> None:
    """Search in one step and compare with searches alone: ids, order and scores."""
    for query, output in zip(queries, search(engine, *queries), strict=True):
        alone = engine.index.search([query.vector], query.k, query.where, query.nprobe)
        assert output.error is None
        assert output.value == tuple(alone[0])


def crowd(count: int = 6, seed: int = 7, **rest: Any) -> list[SearchQuery]:
    return [SearchQuery(vector, 5, **rest) for vector in make_vectors(count, seed, "normal")]


@contextmanager
def shared(index: DocumentIndex, **options: Any) -> Iterator[tuple[RetrievalEngine, list[int]]]:
    """Give an engine that scans codes wherever it has some, and the sizes of its scans."""
    sizes: list[int] = []
    scan = shared_scans.scan

    def record(codes: Any, vectors: Any, queries: Any, *rest: Any, **named: Any) -> Any:
        sizes.append(len(queries))
        return scan(codes, vectors, queries, *rest, **named)

    engine = RetrievalEngine(index, max_threads=1, clock=ManualClock(), **options)
    with (
        mock.patch.object(shared_scans, "MIN_NUMBERS", 1),
        mock.patch.object(shared_scans, "MIN_READ", 1),
        mock.patch.object(shared_scans, "scan", record),
        mock.patch.object(Crossover, "choose", return_value=Way.SHARED),
    ):
        yield engine, sizes
        engine.close()


def prepare(engine: RetrievalEngine) -> None:
    """Let the engine see a crowd, and make its codes."""
    check(engine, *crowd())
    engine._shared.kept.wait()


_QUERY = st.builds(
    SearchQuery,
    st.tuples(*[st.integers(-2, 2)] * DIMENSION),
    st.one_of(st.integers(-1, 12), st.sampled_from([30, 500])),
    st.sampled_from([None, None, None, {}, {"x": 0}, {"x": 9}]),
    st.sampled_from([None, 1, 2, 100]),
)


@settings(max_examples=60, deadline=None)
@given(
    metric=st.sampled_from(Metric),
    style=st.sampled_from(["whole", "normal", "duplicates", "adversarial"]),
    queries=st.lists(_QUERY, min_size=4, max_size=24),
    deleted=st.lists(st.integers(0, 120), max_size=60),
    seed=st.integers(0, 1000),
)
def test_each_search_of_a_crowd_finds_what_it_finds_alone(
    metric: Metric, style: str, queries: list[SearchQuery], deleted: list[int], seed: int
) -> None:
    index = make_index(metric, 120, seed, style)
    index.delete(f"d{n}" for n in deleted)
    with shared(index) as (engine, sizes):
        prepare(engine)
        check(engine, *queries)
        check(engine, *crowd())
        assert sizes[-1] == 6


def test_codes_are_made_after_the_first_crowd_only(metric: Metric) -> None:
    with shared(make_index(metric, 100)) as (engine, sizes):
        check(engine, *crowd(3))
        engine._shared.kept.wait()
        check(engine, *crowd(3))
        assert not sizes
        prepare(engine)
        check(engine, *crowd(3))
        assert not sizes
        check(engine, *crowd(4))
        assert sizes == [4]


def test_searches_with_equal_filters_are_one_crowd(metric: Metric) -> None:
    with shared(make_index(metric, 100)) as (engine, sizes):
        prepare(engine)
        ones = [SearchQuery(one.vector, 2 + n, {"x": 1}, 8 - n) for n, one in enumerate(crowd(5))]
        check(engine, *crowd(4), *ones, *crowd(2, where={"x": 2}))
        assert sizes == [4, 5]


def test_a_search_whose_clusters_hold_too_few_looks_into_all(metric: Metric) -> None:
    with shared(make_index(metric, 100)) as (engine, sizes):
        prepare(engine)
        queries = [SearchQuery(one.vector, 80, None, 1) for one in crowd(4)]
        check(engine, *queries)
        assert sizes == [4]
        assert {len(one.value) for one in search(engine, *queries)} == {80}


def test_codes_follow_changes_once_the_index_has_rested(metric: Metric) -> None:
    with shared(make_index(metric, 100)) as (engine, sizes):
        kept, clock = engine._shared.kept, engine._clock
        assert isinstance(clock, ManualClock)
        prepare(engine)
        kept._took_s = 2.0
        check(engine, *crowd(4))
        engine.index.add(make_documents(20, 95), 3 * make_vectors(20, 5))
        engine.index.delete(["d1", "d2"])
        check(engine, *crowd(5))
        clock.advance(2 * QUIET - 1)
        check(engine, *crowd(5))
        kept.wait()
        check(engine, *crowd(5))
        assert sizes == [4]  # nothing is scanned by codes of another state
        clock.advance(1)
        check(engine, *crowd(5))
        kept.wait()
        check(engine, *crowd(6))
        assert sizes == [4, 6]


def test_outdated_codes_leave_the_memory(metric: Metric) -> None:
    with shared(make_index(metric, 100)) as (engine, _):
        prepare(engine)
        check(engine, *crowd())
        codes = weakref.ref(engine._shared._known.rows.codes)  # type: ignore[union-attr]
        engine._shared.kept._took_s = 1.0
        engine.index.delete(["d1"])
        search(engine, *crowd())
        gc.collect()
        assert codes() is None


def test_an_index_that_changes_while_codes_are_made_has_none(metric: Metric) -> None:
    index = make_index(metric, 100)
    with shared(index) as (engine, sizes):
        encoded = mock.Mock(wraps=index._vectors.cluster_rows)  # type: ignore[union-attr]
        closing = engine._shared.kept._closing

        def change(seconds: float) -> None:
            index.delete(["d5"])

        with (
            mock.patch("rag_accel.engines.retrieval.kept_codes.ENCODED_AT_ONCE", 1),
            mock.patch.object(index._vectors, "cluster_rows", encoded),
            mock.patch.object(closing, "wait", side_effect=change),
        ):
            search(engine, *crowd())
            engine._shared.kept.wait()
        assert 0 < encoded.call_count < 8
        check(engine, *crowd(4))
        assert not sizes
        engine._shared.kept.wait()
        check(engine, *crowd(4))
        assert sizes == [4]


def test_small_pieces_make_the_same_codes(metric: Metric) -> None:
    index = make_index(metric, 100, style="normal")
    with shared(index) as (engine, sizes):
        with mock.patch("rag_accel.engines.retrieval.kept_codes.ENCODED_AT_ONCE", 1):
            prepare(engine)
        check(engine, *crowd(9, seed=3))
        assert sizes == [9]


@pytest.mark.parametrize("bound", [0, 100 * (DIMENSION + 28) - 1])
def test_no_more_memory_is_taken_than_allowed(metric: Metric, bound: int) -> None:
    with shared(make_index(metric, 100), max_code_bytes=bound) as (engine, sizes):
        prepare(engine)
        check(engine, *crowd())
        assert not sizes


def test_codes_need_what_is_said(metric: Metric) -> None:
    bound = 100 * (DIMENSION + 28)
    with shared(make_index(metric, 100), max_code_bytes=bound) as (engine, sizes):
        prepare(engine)
        check(engine, *crowd())
        assert sizes == [6]
        codes = engine._shared._known
        assert codes is not None
        assert codes.rows.nbytes + codes.labels.nbytes == bound


def test_small_indexes_and_flat_ones_are_left_alone(metric: Metric) -> None:
    flat = DocumentIndex(IndexSpec(DIMENSION, metric))
    flat.add(make_documents(100), make_vectors(100))
    with shared(flat) as (engine, sizes):
        prepare(engine)
        check(engine, *crowd())
        assert not sizes
    for limit, value in (("MIN_NUMBERS", 100 * DIMENSION + 1), ("MIN_READ", 100 * DIMENSION + 1)):
        _expect_no_codes(metric, limit, value)


def _expect_no_codes(metric: Metric, limit: str, value: int) -> None:
    with shared(make_index(metric, 100)) as (engine, sizes):
        with mock.patch.object(shared_scans, limit, value):
            prepare(engine)
            check(engine, *crowd())
        assert engine._shared.kept._worker is None
        assert not sizes


def test_after_a_scan_that_fails_each_search_goes_on_alone(
    metric: Metric, caplog: pytest.LogCaptureFixture
) -> None:
    with shared(make_index(metric, 100)) as (engine, _):
        prepare(engine)
        with mock.patch.object(shared_scans, "scan", mock.Mock(side_effect=MemoryError("here"))):
            check(engine, *crowd())
        assert "a shared scan failed" in caplog.text


def test_a_bad_search_in_a_crowd_fails_alone(metric: Metric) -> None:
    with shared(make_index(metric, 100)) as (engine, sizes):
        prepare(engine)
        bad = SearchQuery([1.0] * (DIMENSION + 1), 5)
        *good, last = search(engine, *crowd(4), bad)
        assert isinstance(last.error, ConfigError)
        assert all(one.error is None and len(one.value) == 5 for one in good)
        assert sizes == [4]


def test_without_torch_searching_goes_on(metric: Metric, caplog: pytest.LogCaptureFixture) -> None:
    with shared(make_index(metric, 100)) as (engine, sizes):
        product = mock.Mock(side_effect=ImportError("no torch"))
        with mock.patch("rag_accel.engines.retrieval.kept_codes.exact_product", product):
            prepare(engine)
            prepare(engine)
        assert product.call_count == 1
        assert not sizes
        assert "no codes" in caplog.text


def test_a_closed_engine_holds_no_codes(metric: Metric) -> None:
    with shared(make_index(metric, 100)) as (engine, _):
        prepare(engine)
        check(engine, *crowd())
        engine.close()
        with engine.index.viewing() as view:
            assert engine._shared.kept.codes(view) is None
        assert engine._shared._known is None


def test_the_way_that_costs_less_is_taken(metric: Metric) -> None:
    index = make_index(metric, 100)
    clock = ManualClock()
    engine = RetrievalEngine(index, max_threads=1, clock=clock)
    scan, find = shared_scans.scan, DocumentIndex.search
    ways: list[str] = []

    def slow_search(self: DocumentIndex, vectors: Any, *rest: Any) -> Any:
        ways.append("each")
        clock.advance(len(vectors))
        return find(self, vectors, *rest)

    def flat_scan(*args: Any, **named: Any) -> Any:
        ways.append("shared")
        clock.advance(10)
        return scan(*args, **named)

    with (
        mock.patch.object(shared_scans, "MIN_NUMBERS", 1),
        mock.patch.object(shared_scans, "MIN_READ", 1),
        mock.patch.object(shared_scans, "scan", flat_scan),
        mock.patch.object(DocumentIndex, "search", slow_search),
    ):
        for _ in range(20):
            search(engine, *crowd(5))
            engine._shared.kept.wait()
            search(engine, *crowd(20))
        ways.clear()
        search(engine, *crowd(5))
        search(engine, *crowd(20))
        search(engine, *crowd(3))
    engine.close()
    assert ways == ["each", "shared", "each"]

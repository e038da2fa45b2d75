"""A crowd that shares a scan finds what each of its searches finds alone, whatever changes."""

from __future__ import annotations

import gc
import sys
import weakref
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import pytest
from code_harness import (
    DIMENSION,
    QUERIES,
    all_pays,
    check,
    crowd,
    going,
    make_documents,
    make_index,
    make_vectors,
    prepare,
    search,
)
from hypothesis import given, settings

from rag_accel.engine_api import SearchQuery
from rag_accel.engines.retrieval import (
    DocumentIndex,
    IndexSpec,
    Metric,
    RetrievalEngine,
    search_ways,
    shared_scans,
)
from rag_accel.engines.retrieval.coded_searches import CodedSearches
from rag_accel.engines.retrieval.crossover import Way
from rag_accel.engines.retrieval.kept_codes import QUIET
from rag_accel.errors import ConfigError
from rag_accel.testing import ManualClock

pytest.importorskip("torch")  # imports it, without which nothing is shared


def shared(
    index: DocumentIndex, **options: Any
) -> AbstractContextManager[tuple[RetrievalEngine, list[int]]]:
    """Give an engine that shares scans wherever it can, and the sizes of its scans."""
    return going(Way.SHARED, index, **options)


@settings(max_examples=60, deadline=None)
@given(
    metric=st.sampled_from(Metric),
    style=st.sampled_from(["whole", "normal", "duplicates", "adversarial"]),
    queries=st.lists(QUERIES, min_size=4, max_size=24),
    deleted=st.lists(st.integers(0, 120), max_size=60),
    seed=st.integers(0, 1000),
)
def test_each_search_of_a_crowd_finds_what_it_finds_alone(
    metric: Metric, style: str, queries: list[SearchQuery], deleted: list[int], seed: int
) -> None:
    index = make_index(metric, 120, seed, style)
    index.delete(f"d{n}" for n in deleted)
    with shared(index) as (engine, sizes):
        prepare(engine, sizes)
        check(engine, *queries)
        check(engine, *crowd())
        assert sizes[-1] == 6


def test_codes_are_made_after_the_first_crowd_only(metric: Metric) -> None:
    with shared(make_index(metric, 100)) as (engine, sizes):
        check(engine, *crowd(3))
        engine._ways.shared.kept.wait()
        check(engine, *crowd(3))
        assert not sizes
        prepare(engine, sizes)
        check(engine, *crowd(3))
        assert not sizes
        check(engine, *crowd(4))
        assert sizes == [4]


def test_searches_with_equal_filters_are_one_crowd(metric: Metric) -> None:
    with shared(make_index(metric, 100)) as (engine, sizes):
        prepare(engine, sizes)
        ones = [SearchQuery(one.vector, 2 + n, {"x": 1}, 8 - n) for n, one in enumerate(crowd(5))]
        check(engine, *crowd(4), *ones, *crowd(2, where={"x": 2}))
        assert sizes == [4, 5]


def test_a_search_whose_clusters_hold_too_few_looks_into_all(metric: Metric) -> None:
    with shared(make_index(metric, 100)) as (engine, sizes):
        prepare(engine, sizes)
        queries = [SearchQuery(one.vector, 80, None, 1) for one in crowd(4)]
        check(engine, *queries)
        assert sizes == [4]
        assert {len(one.value) for one in search(engine, *queries)} == {80}


def test_codes_follow_changes_once_the_index_has_rested(metric: Metric) -> None:
    with shared(make_index(metric, 100)) as (engine, sizes):
        kept, clock = engine._ways.shared.kept, engine._clock
        assert isinstance(clock, ManualClock)
        prepare(engine, sizes)
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
        codes = weakref.ref(engine._ways.shared.kept._kept[1].rows.codes)  # type: ignore[index]
        engine._ways.shared.kept._took_s = 1.0
        engine.index.delete(["d1"])
        search(engine, *crowd())
        gc.collect()
        assert codes() is None


def test_an_index_that_changes_while_codes_are_made_has_none(metric: Metric) -> None:
    index = make_index(metric, 100)
    with shared(index) as (engine, sizes):
        vectors = index.view().vectors
        encoded = mock.Mock(wraps=vectors.cluster_rows)  # type: ignore[union-attr]
        closing = engine._ways.shared.kept._closing

        def change(seconds: float) -> None:
            index.delete(["d5"])

        with (
            mock.patch("rag_accel.engines.retrieval.kept_codes.ENCODED_AT_ONCE", 1),
            mock.patch.object(vectors, "cluster_rows", encoded),
            mock.patch.object(closing, "wait", side_effect=change),
            mock.patch.object(engine._ways.coded.kept, "want"),
        ):
            search(engine, *crowd())
            engine._ways.shared.kept.wait()
        assert 0 < encoded.call_count < 8
        check(engine, *crowd(4))
        assert not sizes
        engine._ways.shared.kept.wait()
        check(engine, *crowd(4))
        assert sizes == [4]


def test_small_pieces_make_the_same_codes(metric: Metric) -> None:
    index = make_index(metric, 100, style="normal")
    with shared(index) as (engine, sizes):
        with mock.patch("rag_accel.engines.retrieval.kept_codes.ENCODED_AT_ONCE", 1):
            prepare(engine, sizes)
        check(engine, *crowd(9, seed=3))
        assert sizes == [9]


@pytest.mark.parametrize("bound", [0, 100 * (2 * DIMENSION + 36) - 1])
def test_no_more_memory_is_taken_than_allowed(metric: Metric, bound: int) -> None:
    with shared(make_index(metric, 100), max_code_bytes=bound) as (engine, sizes):
        prepare(engine, sizes)
        check(engine, *crowd())
        assert not sizes


def test_codes_need_what_is_said(metric: Metric) -> None:
    bound = 100 * (2 * DIMENSION + 36)
    with shared(make_index(metric, 100), max_code_bytes=bound) as (engine, sizes):
        prepare(engine, sizes)
        check(engine, *crowd())
        assert sizes == [6]
        with engine.index.reading():
            codes = engine._ways.shared.kept.codes(engine.index.view())
        assert codes is not None
        assert codes.rows.nbytes + codes.labels.nbytes == 100 * (DIMENSION + 28)


def test_small_indexes_and_flat_ones_are_left_alone(metric: Metric) -> None:
    flat = DocumentIndex(IndexSpec(DIMENSION, metric))
    flat.add(make_documents(100), make_vectors(100))
    with shared(flat) as (engine, sizes):
        prepare(engine, sizes)
        check(engine, *crowd())
        assert not sizes
    for limit, value in (("MIN_NUMBERS", 100 * DIMENSION + 1), ("MIN_READ", 100 * DIMENSION + 1)):
        _expect_no_codes(metric, limit, value)


def _expect_no_codes(metric: Metric, limit: str, value: int) -> None:
    with shared(make_index(metric, 100)) as (engine, sizes):
        with mock.patch.object(search_ways, limit, value):
            prepare(engine, sizes)
            check(engine, *crowd())
        assert engine._ways.shared.kept._worker is None
        assert not sizes


def test_after_a_scan_that_fails_each_search_goes_on_alone(
    metric: Metric, caplog: pytest.LogCaptureFixture
) -> None:
    with shared(make_index(metric, 100)) as (engine, _):
        prepare(engine)
        with mock.patch.object(shared_scans, "scan", mock.Mock(side_effect=MemoryError("here"))):
            check(engine, *crowd())
        assert "a search by codes failed" in caplog.text


def test_a_bad_search_in_a_crowd_fails_alone(metric: Metric) -> None:
    with shared(make_index(metric, 100)) as (engine, sizes):
        prepare(engine, sizes)
        bad = SearchQuery([1.0] * (DIMENSION + 1), 5)
        *good, last = search(engine, *crowd(4), bad)
        assert isinstance(last.error, ConfigError)
        assert all(one.error is None and len(one.value) == 5 for one in good)
        assert sizes == [4]


def test_without_torch_searching_goes_on(metric: Metric, caplog: pytest.LogCaptureFixture) -> None:
    with shared(make_index(metric, 100)) as (engine, sizes):
        product = mock.Mock(side_effect=ImportError("no torch"))
        with mock.patch("rag_accel.engines.retrieval.shared_scans.exact_product", product):
            prepare(engine, sizes)
            prepare(engine, sizes)
        assert product.call_count == 1
        assert not sizes
        assert "no codes" in caplog.text


def test_torch_is_not_imported_for_it(metric: Metric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    with shared(make_index(metric, 100)) as (engine, sizes):
        prepare(engine, sizes)
        check(engine, *crowd())
        assert engine._ways.shared.kept._worker is None
        assert "torch" not in sys.modules
        assert not sizes


def test_a_closed_engine_holds_no_codes(metric: Metric) -> None:
    with shared(make_index(metric, 100)) as (engine, _):
        prepare(engine)
        check(engine, *crowd())
        engine.close()
        with engine.index.reading():
            assert engine._ways.shared.kept.codes(engine.index.view()) is None


def test_the_way_that_costs_less_is_taken(metric: Metric) -> None:
    index = make_index(metric, 100)
    clock = ManualClock()
    engine = RetrievalEngine(index, max_threads=1, clock=clock)
    scan, find, by_codes = shared_scans.scan, DocumentIndex.search, CodedSearches.search
    ways: list[str] = []

    def slow_search(self: DocumentIndex, vectors: Any, *rest: Any) -> Any:
        ways.append("each")
        clock.advance(len(vectors))
        return find(self, vectors, *rest)

    def faster_search(self: CodedSearches, crowd: Any) -> Any:
        ways.append("coded")
        clock.advance(0.8 * len(crowd))
        return by_codes(self, crowd)

    def flat_scan(*args: Any, **named: Any) -> Any:
        ways.append("shared")
        clock.advance(10)
        return scan(*args, **named)

    with (
        all_pays(),
        mock.patch.object(shared_scans, "scan", flat_scan),
        mock.patch.object(CodedSearches, "search", faster_search),
        mock.patch.object(DocumentIndex, "search", slow_search),
    ):
        for _ in range(20):
            search(engine, *crowd(5))
            engine._ways.shared.kept.wait()
            engine._ways.coded.kept.wait()
            search(engine, *crowd(20))
            search(engine, *crowd(3))
        ways.clear()
        search(engine, *crowd(5))
        search(engine, *crowd(20))
        search(engine, *crowd(3))
    engine.close()
    assert ways == ["coded", "shared", "coded"]

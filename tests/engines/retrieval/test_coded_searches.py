"""What is searched by 8-bit lists finds what a search of the vectors finds, whatever changes."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pytest
from code_harness import (
    DIMENSION,
    QUERIES,
    check,
    coded,
    crowd,
    make_documents,
    make_index,
    make_vectors,
    prepare,
    search,
)
from hypothesis import given, settings

from rag_accel.engine_api import SearchQuery, StepBudget
from rag_accel.engines.retrieval import DocumentIndex, Metric
from rag_accel.engines.retrieval.coded import searches
from rag_accel.engines.retrieval.coded.codes import CodedVectors
from rag_accel.engines.retrieval.coded.encoder import CodedVectorsEncoder
from rag_accel.engines.retrieval.coded.kept_codes import LABEL_BYTES, QUIET
from rag_accel.engines.retrieval.coded.searches import CodedSearches
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors
from rag_accel.engines.retrieval.vectors.nearest import exact_scores, prove_nearest
from rag_accel.engines.retrieval.vectors.row_places import MOST_LABELS
from rag_accel.engines.retrieval.vectors.spec import IndexKind, IndexSpec
from rag_accel.engines.retrieval.vectors.vectors import SearchScope, thread_count
from rag_accel.errors import ConfigError

STYLES = st.sampled_from(["whole", "normal", "duplicates", "adversarial"])


def encoded(vectors: IvfVectors, at_once: int = 50) -> CodedVectors:
    encoder = CodedVectorsEncoder(vectors)
    while not encoder.is_done:
        encoder.take(at_once)
    return encoder.codes()


def held_by(index: DocumentIndex) -> IvfVectors:
    with index.reading():
        vectors = index.view().vectors
        assert isinstance(vectors, IvfVectors)
        return vectors


@settings(max_examples=80, deadline=None)
@given(
    metric=st.sampled_from(Metric),
    style=STYLES,
    queries=st.lists(QUERIES, min_size=1, max_size=24),
    deleted=st.lists(st.integers(0, 120), max_size=60),
    seed=st.integers(0, 1000),
    slices=st.sampled_from([None, 0.0]),
)
def test_each_search_finds_what_it_finds_among_the_vectors(
    metric: Metric,
    style: str,
    queries: list[SearchQuery],
    deleted: list[int],
    seed: int,
    slices: float | None,
) -> None:
    index = make_index(metric, 120, seed, style)
    index.delete(f"d{n}" for n in deleted)
    options = {} if slices is None else {"sliced_from_s": slices}
    with coded(index, **options) as (engine, sizes):
        prepare(engine, sizes)
        check(engine, *queries)
        check(engine, *crowd())
        assert sizes[-1:] == [6] if slices is None else not sizes


@settings(max_examples=150, deadline=None)
@given(
    metric=st.sampled_from(Metric),
    style=STYLES,
    dimension=st.integers(1, 70),
    count=st.integers(20, 200),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e6, 1e15]),
    seed=st.integers(0, 10_000),
    limit=st.integers(1, 30),
    threads=st.sampled_from([1, 2]),
)
def test_the_bounds_hold_for_every_vector(
    metric: Metric,
    style: str,
    dimension: int,
    count: int,
    scale: float,
    seed: int,
    limit: int,
    threads: int,
) -> None:
    random = np.random.default_rng(seed)
    vectors = (scale * random.standard_normal((count, dimension))).astype(np.float32)
    if style == "duplicates":
        vectors = vectors[random.integers(0, 1 + count // 10, count)]
    if style == "adversarial":
        lengths = random.choice([0, 1e-42, 1e-20, 1, 1, 100], count).astype(np.float32)
        vectors *= lengths[:, None]
    if style == "whole":
        vectors = scale * np.round(vectors / scale)
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    queries = np.concatenate([vectors[:3], vectors[3:6] + vectors[6:9]])
    spec = IndexSpec(dimension, metric, IndexKind.IVF, num_clusters=4, nprobe=4)
    held = IvfVectors.train(spec, np.arange(count, dtype=np.int64), vectors)
    codes = encoded(held)
    with thread_count(threads):
        scores, labels = codes.fetch(queries, count, SearchScope(count, None, 4))
    found = codes.candidates(queries, scores, labels)
    assert found.highest is not None
    for row, query in enumerate(queries):
        assert sorted(labels[row]) == list(range(count))
        true = exact_scores(metric, query[None, :], vectors[labels[row]])
        assert (true <= found.highest[row]).all()
        assert (found.highest[row] <= found.highest[row][0]).all()
    limits = np.full(len(queries), min(limit, count))
    settled = prove_nearest(
        held, queries, limits, replace(found, bounds=np.full(len(queries), -np.inf))
    )
    for query, hits in zip(queries, settled, strict=True):
        true = exact_scores(metric, query[None, :], vectors)
        nearest = np.lexsort((np.arange(count), -true))[: limits[0]]
        assert hits is not None
        assert hits.labels.tolist() == nearest.tolist(), "ties at the cut are won by the lower"
        assert hits.scores.tolist() == true[nearest].tolist()


def test_few_candidates_are_left_of_a_fetch() -> None:
    random = np.random.default_rng(0)
    vectors = random.standard_normal((20_000, 64)).astype(np.float32)
    spec = IndexSpec(64, Metric.INNER_PRODUCT, IndexKind.IVF, num_clusters=16, nprobe=16)
    held = IvfVectors.train(spec, np.arange(len(vectors), dtype=np.int64), vectors)
    codes = encoded(held, 5000)
    queries = random.standard_normal((20, 64)).astype(np.float32)
    scores, labels = codes.fetch(queries, codes.first_count(5), SearchScope(len(vectors)))
    found = codes.candidates(queries, scores, labels)
    with mock.patch.object(IvfVectors, "gather", autospec=True, side_effect=IvfVectors.gather) as g:
        settled = prove_nearest(held, queries, np.full(20, 5), found)
    assert None not in settled, "the first fetch suffices"
    assert sum(len(call.args[1]) for call in g.call_args_list) <= 20 * 20


def test_the_size_of_the_looks_changes_nothing(metric: Metric) -> None:
    held = held_by(make_index(metric, 100, style="normal"))
    ones, others = encoded(held, 1), encoded(held, 1000)
    assert (ones.error, ones.decoded, ones.centroid) == (
        others.error,
        others.decoded,
        others.centroid,
    )
    queries = make_vectors(5, 3, "normal")
    for one, other in zip(
        ones.fetch(queries, 9, SearchScope(100)),
        others.fetch(queries, 9, SearchScope(100)),
        strict=True,
    ):
        assert np.array_equal(one, other)


def test_one_vector_that_dwarfs_the_others_costs_only_time(metric: Metric) -> None:
    index = make_index(metric, 120, style="normal")
    index.add(make_documents(1, 500), 1e12 * make_vectors(1, 9, "normal"))
    with coded(index) as (engine, sizes):
        prepare(engine, sizes)
        check(engine, *crowd(), SearchQuery([1e12, 0, 0, 0], 3))
        assert sizes == [7]


def test_codes_are_made_once_enough_was_searched(metric: Metric) -> None:
    with coded(make_index(metric, 100)) as (engine, sizes):
        with mock.patch.object(searches, "MIN_SEARCHES", 4):
            for count in (1, 2):
                check(engine, *crowd(count))
                assert engine._coded.kept._worker is None
            check(engine, *crowd(1))
            engine._coded.kept.wait()
            check(engine, *crowd(1))
        assert sizes == [1]


def test_codes_follow_changes_once_the_index_has_rested(metric: Metric) -> None:
    with coded(make_index(metric, 100)) as (engine, sizes):
        kept, clock = engine._coded.kept, engine._clock
        prepare(engine, sizes)
        kept._took_s = 2.0
        check(engine, *crowd(1))
        engine.index.add(make_documents(20, 95), 3 * make_vectors(20, 5))
        engine.index.delete(["d1", "d2"])
        check(engine, *crowd(2))
        kept.wait()
        check(engine, *crowd(2))
        assert sizes == [1]  # nothing is searched by codes of another state
        clock.advance(2 * QUIET)  # type: ignore[attr-defined]
        check(engine, *crowd(2))
        kept.wait()
        check(engine, *crowd(3))
        assert sizes == [1, 3]


def test_outdated_codes_leave_the_memory(metric: Metric) -> None:
    with coded(make_index(metric, 100)) as (engine, _):
        prepare(engine)
        check(engine, *crowd(1))
        lists = weakref.ref(engine._coded.kept._kept[1].lists)  # type: ignore[index]
        engine._coded.kept._took_s = 1.0
        engine.index.delete(["d1"])
        search(engine, *crowd(1))
        gc.collect()
        assert lists() is None


@pytest.mark.parametrize("is_enough", [False, True])
def test_no_more_memory_is_taken_than_allowed(metric: Metric, is_enough: bool) -> None:
    bound = 100 * (DIMENSION + LABEL_BYTES)
    index = make_index(metric, 100)
    with coded(index, max_code_bytes=bound if is_enough else bound - 1) as (engine, sizes):
        prepare(engine, sizes)
        check(engine, *crowd())
        assert sizes == ([6] if is_enough else [])


def test_codes_take_no_more_memory_than_is_said(metric: Metric) -> None:
    held = held_by(make_index(metric, 100))
    index = encoded(held).lists.index
    per_vector = index.invlists.code_size + np.dtype(np.int64).itemsize
    assert held._places is not None
    assert held._places.num_bytes == 8 * 100
    assert per_vector + 8 * MOST_LABELS == DIMENSION + LABEL_BYTES


def test_after_a_search_that_fails_each_goes_on_alone(
    metric: Metric, caplog: pytest.LogCaptureFixture
) -> None:
    with coded(make_index(metric, 100)) as (engine, _):
        prepare(engine)
        broken = mock.Mock(side_effect=MemoryError("here"))
        with mock.patch.object(CodedSearches, "search", broken):
            check(engine, *crowd())
        assert "a search by codes failed" in caplog.text


def test_half_done_searches_use_the_codes_that_were_there_when_they_began(metric: Metric) -> None:
    index = make_index(metric, 120, style="normal")
    with coded(index, sliced_from_s=0.0) as (engine, _):
        queries = crowd(3, nprobe=8)
        (first, *_), _ = queries, search(engine, *crowd())
        engine._coded.kept.wait()
        with mock.patch.object(
            CodedVectors, "scan", autospec=True, side_effect=CodedVectors.scan
        ) as scan:
            check(engine, first)
            assert scan.called
        engine.index.delete(["d3"])
        assert not engine.step(StepBudget())
        check(engine, *queries)


def test_searches_with_equal_filters_are_one_crowd(metric: Metric) -> None:
    with coded(make_index(metric, 100)) as (engine, sizes):
        prepare(engine, sizes)
        ones = [SearchQuery(one.vector, 2 + n, {"x": 1}, 8 - n) for n, one in enumerate(crowd(5))]
        check(engine, *crowd(4), *ones, *crowd(2, where={"x": 2}))
        assert sizes == [4, 5, 2]


def test_a_search_whose_clusters_hold_too_few_looks_into_all(metric: Metric) -> None:
    with coded(make_index(metric, 100)) as (engine, sizes):
        prepare(engine, sizes)
        queries = [SearchQuery(one.vector, 80, None, 1) for one in crowd(4)]
        check(engine, *queries)
        assert sizes == [4]
        assert {len(one.value) for one in search(engine, *queries)} == {80}


def test_an_index_that_changes_while_codes_are_made_has_none(metric: Metric) -> None:
    index = make_index(metric, 100)
    with coded(index) as (engine, sizes):
        vectors, kept = held_by(index), engine._coded.kept
        looked = mock.Mock(wraps=vectors.cluster_rows)

        def change(seconds: float) -> None:
            index.delete(["d5"])

        with (
            mock.patch("rag_accel.engines.retrieval.coded.kept_codes.ENCODED_AT_ONCE", 1),
            mock.patch.object(vectors, "cluster_rows", looked),
            mock.patch.object(kept._closing, "wait", side_effect=change),
        ):
            search(engine, *crowd())
            kept.wait()
        assert 0 < looked.call_count < 8
        check(engine, *crowd(4))
        assert not sizes
        kept.wait()
        check(engine, *crowd(4))
        assert sizes == [4]


def test_small_indexes_and_flat_ones_are_left_alone(metric: Metric) -> None:
    flat = DocumentIndex(IndexSpec(DIMENSION, metric))
    flat.add(make_documents(100), make_vectors(100))
    with coded(flat) as (engine, sizes):
        prepare(engine, sizes)
        check(engine, *crowd())
        assert not sizes
    for limit in ("MIN_NUMBERS", "MIN_READ", "MIN_CROWD_READ"):
        with coded(make_index(metric, 100)) as (engine, sizes):
            with mock.patch.object(searches, limit, 600 * DIMENSION + 1):
                prepare(engine, sizes)
                check(engine, *crowd())
            assert engine._coded.kept._worker is None
            assert not sizes


def test_a_bad_search_in_a_crowd_fails_alone(metric: Metric) -> None:
    with coded(make_index(metric, 100)) as (engine, sizes):
        prepare(engine, sizes)
        bad = SearchQuery([1.0] * (DIMENSION + 1), 5)
        *good, last = search(engine, *crowd(4), bad)
        assert isinstance(last.error, ConfigError)
        assert all(one.error is None and len(one.value) == 5 for one in good)
        assert sizes == [4]


def test_codes_that_cannot_be_made_are_tried_once(
    metric: Metric, caplog: pytest.LogCaptureFixture
) -> None:
    with coded(make_index(metric, 100)) as (engine, sizes):
        broken = mock.Mock(side_effect=MemoryError("here"))
        with mock.patch.object(CodedVectorsEncoder, "take", broken):
            prepare(engine, sizes)
            prepare(engine, sizes)
        assert broken.call_count == 1
        assert not sizes
        assert "no codes" in caplog.text


def test_a_closed_engine_holds_no_codes(metric: Metric) -> None:
    with coded(make_index(metric, 100)) as (engine, _):
        prepare(engine)
        check(engine, *crowd())
        engine.close()
        with engine.index.reading():
            assert engine._coded.kept.codes(engine.index.view()) is None


def test_crowds_that_read_enough_together_go_by_codes(metric: Metric) -> None:
    with coded(make_index(metric, 100)) as (engine, sizes):
        prepare(engine, sizes)
        index = engine.index
        read = DIMENSION * index.num_compared(None, 8)
        with mock.patch.object(searches, "MIN_CROWD_READ", 3 * read):
            for count in (1, 2, 3, 4):
                check(engine, *crowd(count, nprobe=8))
        assert sizes == [3, 4]


@pytest.mark.parametrize("dimension", [1, 3, 24, 256, 262, 384, 1024])
def test_the_decoder_reads_whole_cache_lines(dimension: int) -> None:
    vectors = np.random.default_rng(0).standard_normal((60, dimension)).astype(np.float32)
    spec = IndexSpec(dimension, Metric.L2, IndexKind.IVF, num_clusters=2, nprobe=2)
    lists = encoded(IvfVectors.train(spec, np.arange(60), vectors)).lists
    assert [int(index.sq.trained.data()) % 64 for index in (lists.index, lists._sliced)] == [0, 0]

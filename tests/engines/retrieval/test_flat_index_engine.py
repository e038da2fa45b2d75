"""A flat FAISS index is searched for many as it is for one, bit for bit."""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_accel.engine_api import EngineRequest, PrimitiveKind, SearchQuery, StepBudget, WorkId
from rag_accel.engines.retrieval import flat_index_engine
from rag_accel.engines.retrieval.flat_index_engine import (
    MULTIPLY_FROM,
    FlatIndexEngine,
    is_searchable,
)
from rag_accel.engines.retrieval.flat_products import MARGIN
from rag_accel.errors import ConfigError, EngineOutputError

DIMENSION = 24


@pytest.fixture(autouse=True, params=["multiplied", "scanned"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with the product and without."""
    limit = 0 if request.param == "multiplied" else 1 << 60
    monkeypatch.setattr(flat_index_engine, "MIN_NUMBERS", limit)


Rows = Any


def rows(count: int, seed: int = 1, scale: float = 1.0) -> Rows:
    """Return random vectors ``[count, DIMENSION]``, float32."""
    drawn = np.random.default_rng(seed).normal(size=(count, DIMENSION)) * scale
    return drawn.astype(np.float32)


def index_of(vectors: Rows, metric: int = faiss.METRIC_L2) -> Any:
    """Return a flat index."""
    index = faiss.IndexFlat(vectors.shape[1], metric)
    index.add(vectors)
    return index


def ask(engine: FlatIndexEngine, queries: Rows, k: int = 4) -> list[Any]:
    """Return the outputs of these searches, made in one step, in their order."""
    work_items = [
        EngineRequest(WorkId(str(at)), "r", PrimitiveKind.SEARCHING, SearchQuery(query, k))
        for at, query in enumerate(queries)
    ]
    engine.submit(work_items)
    outputs = {str(output.id): output for output in engine.step(StepBudget(threads=2))}
    return [outputs[str(at)] for at in range(len(work_items))]


def found(engine: FlatIndexEngine, queries: Rows, k: int = 4) -> list[list[tuple[int, float]]]:
    """Return places and FAISS's numbers for each query."""
    outputs = ask(engine, queries, k)
    assert [output.kind for output in outputs] == ["final"] * len(outputs)
    sign = -1 if engine._index.metric_type == faiss.METRIC_L2 else 1
    return [
        [(int(hit.document.id), sign * hit.score) for hit in output.value] for output in outputs
    ]


def alone(index: Any, queries: Rows, k: int = 4) -> list[list[tuple[int, float]]]:
    """Return what FAISS finds for each query by itself."""
    results = []
    for query in queries:
        numbers, places = index.search(np.ascontiguousarray(query[None]), k)
        pairs = zip(places[0].tolist(), numbers[0].tolist(), strict=True)
        results.append([pair for pair in pairs if pair[0] >= 0])
    return results


METRICS = pytest.mark.parametrize("metric", [faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT])


@METRICS
@pytest.mark.parametrize("count", [1, MULTIPLY_FROM - 1, MULTIPLY_FROM, 20, 64])
@pytest.mark.parametrize("k", [1, 4, 20])
def test_many_find_what_each_finds_alone(metric: int, count: int, k: int) -> None:
    index = index_of(rows(2_000), metric)
    queries = rows(count, seed=2)
    assert found(FlatIndexEngine(index), queries, k) == alone(index, queries, k)


@METRICS
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_ties_zeros_and_lengths_change_nothing(metric: int, data: st.DataObject) -> None:
    kinds = st.sampled_from([0.0, 1.0, -1.0, 0.5, 1e-3, 300.0])
    cell = st.lists(kinds, min_size=DIMENSION, max_size=DIMENSION)
    some = np.array(data.draw(st.lists(cell, min_size=2, max_size=6)), dtype=np.float32)
    picks = data.draw(st.lists(st.integers(0, len(some) - 1), min_size=12, max_size=60))
    vectors = some[picks] + rows(len(picks), seed=3, scale=data.draw(st.sampled_from([0.0, 1e-6])))
    queries = np.concatenate([some, rows(MULTIPLY_FROM)])
    k = data.draw(st.integers(1, len(picks) + 2))
    index = index_of(vectors, metric)
    assert found(FlatIndexEngine(index), queries, k) == alone(index, queries, k)


@METRICS
def test_vectors_that_rounding_cannot_tell_apart_are_searched_alone(metric: int) -> None:
    near = np.ones((400, DIMENSION), dtype=np.float32) * 1000
    near += rows(400, scale=1e-3)
    index = index_of(near, metric)
    queries = near[:30] + np.float32(0.5)
    assert found(FlatIndexEngine(index), queries) == alone(index, queries)


@METRICS
@pytest.mark.parametrize("size", [0, 1, 4, 4 + MARGIN])
def test_a_small_index_gives_what_it_has(metric: int, size: int) -> None:
    index = index_of(rows(size), metric)
    queries = rows(30, seed=2)
    assert found(FlatIndexEngine(index), queries) == alone(index, queries)


@METRICS
def test_infinite_vectors_in_the_index_are_found_as_alone(metric: int) -> None:
    vectors = rows(100)
    vectors[3, 0], vectors[5, 1], vectors[8, 2] = np.inf, -np.inf, np.nan
    index = index_of(vectors, metric)
    queries = rows(30, seed=2)
    together, each = found(FlatIndexEngine(index), queries), alone(index, queries)
    assert [[place for place, _ in one] for one in together] == [
        [place for place, _ in one] for one in each
    ]


def test_what_is_added_is_found_by_the_next_search() -> None:
    index = index_of(rows(1_000))
    engine = FlatIndexEngine(index)
    queries = rows(30, seed=2)
    before = found(engine, queries)
    index.add(queries)
    after = found(engine, queries)
    assert [one[0][0] for one in after] == list(range(1_000, 1_030))
    index.remove_ids(faiss.IDSelectorRange(1_000, 1_030))
    assert found(engine, queries) == before


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (SearchQuery(np.zeros(3), 4), ConfigError),
        (SearchQuery(np.zeros(DIMENSION), 0), AssertionError),  # as FAISS says it
        (SearchQuery(np.full(DIMENSION, np.nan), 4), EngineOutputError),
        ("a text", ConfigError),
    ],
)
def test_one_bad_search_fails_alone(payload: Any, error: type[Exception]) -> None:
    index = index_of(rows(1_000))
    engine = FlatIndexEngine(index)
    queries = rows(30, seed=2)
    engine.submit([EngineRequest(WorkId("bad"), "r", PrimitiveKind.SEARCHING, payload)])
    engine.submit(
        EngineRequest(WorkId(str(at)), "r", PrimitiveKind.SEARCHING, SearchQuery(query, 4))
        for at, query in enumerate(queries)
    )
    outputs = {str(output.id): output for output in engine.step(StepBudget(threads=1))}
    assert isinstance(outputs.pop("bad").error, error)
    assert {output.kind for output in outputs.values()} == {"final"}


def test_what_is_cancelled_or_closed_is_forgotten() -> None:
    engine = FlatIndexEngine(index_of(rows(100)))
    request = EngineRequest(WorkId("one"), "r", PrimitiveKind.SEARCHING, SearchQuery(rows(1)[0], 4))
    engine.submit([request])
    engine.cancel([WorkId("one")])
    assert engine.step(StepBudget(threads=1)) == []
    engine.submit([request])
    engine.close()
    assert engine.step(StepBudget(threads=1)) == []


def test_only_flat_indexes_of_known_metrics_are_searched() -> None:
    assert is_searchable(faiss.IndexFlatL2(4))
    assert is_searchable(faiss.IndexFlatIP(4))
    assert is_searchable(faiss.IndexFlat(4, faiss.METRIC_L2))
    assert not is_searchable(faiss.IndexFlat(4, faiss.METRIC_L1))
    assert not is_searchable(faiss.IndexHNSWFlat(4, 8))
    assert not is_searchable(faiss.IndexFlat1D())

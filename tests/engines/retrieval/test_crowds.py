"""A crowd's searches of a flat FAISS index share the fewest looks at it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import faiss
import numpy as np
import pytest

from rag_accel.engine_api import EngineRequest, PrimitiveKind, SearchQuery, StepBudget, WorkId
from rag_accel.engines.retrieval import flat_index_engine, flat_products
from rag_accel.engines.retrieval.flat_index_engine import (
    MIN_NUMBERS,
    MULTIPLY_FROM,
    SCANNED,
    FlatIndexEngine,
)
from rag_accel.engines.retrieval.flat_products import FlatView, fetch_together
from rag_accel.errors import ConfigError

DIMENSION, CALLERS = 64, 64
SIZE = MIN_NUMBERS // DIMENSION + 1


class Watched:
    """A flat index that notes how many queries each look at it is for."""

    def __init__(self, index: Any) -> None:
        self._index = index
        self.scans = list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def search(self, queries: Any, k: int) -> Any:
        """Search, and note it."""
        self.scans.append(len(queries))
        return self._index.search(queries, k)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return the sizes of the products that are made, and the threads FAISS is set to then."""
    made = list[tuple[int, int]]()

    def noted(view: FlatView, queries: Any, count: int) -> Any:
        made.append((len(queries), faiss.omp_get_max_threads()))
        return fetch_together(view, queries, count)

    monkeypatch.setattr(flat_index_engine, "fetch_together", noted)
    return made


@pytest.fixture(scope="module")
def vectors() -> Any:
    """Return vectors ``[SIZE, DIMENSION]``, float32."""
    return np.random.default_rng(1).normal(size=(SIZE, DIMENSION)).astype(np.float32)


@pytest.fixture
def index(vectors: Any) -> Watched:
    """Return an index of them by squared distance."""
    flat = faiss.IndexFlatL2(DIMENSION)
    flat.add(vectors)
    return Watched(flat)


def queries_of(count: int) -> Any:
    """Return queries ``[count, DIMENSION]``, float32."""
    return np.random.default_rng(2).normal(size=(count, DIMENSION)).astype(np.float32)


def ask(engine: FlatIndexEngine, payloads: Sequence[Any]) -> list[Any]:
    """Return the outputs of one step, in order."""
    engine.submit(
        [
            EngineRequest(WorkId(str(at)), "r", PrimitiveKind.SEARCHING, payload)
            for at, payload in enumerate(payloads)
        ]
    )
    outputs = {str(output.id): output for output in engine.step(StepBudget(threads=1))}
    return [outputs[str(at)] for at in range(len(payloads))]


def pairs_of(output: Any) -> list[tuple[int, float]]:
    """Return places and squared distances."""
    return [(int(hit.document.id), -hit.score) for hit in output.value]


def alone(index: Watched, query: Any, k: int) -> list[tuple[int, float]]:
    """Return what FAISS finds for one query on one thread."""
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        numbers, places = index._index.search(query[None], k)
    finally:
        faiss.omp_set_num_threads(threads)
    return list(zip(places[0].tolist(), numbers[0].tolist(), strict=True))


def test_all_callers_share_one_product_and_no_scan(
    index: Watched, products: list[tuple[int, int]]
) -> None:
    queries = queries_of(CALLERS)
    outputs = ask(FlatIndexEngine(index), [SearchQuery(query, 4) for query in queries])
    assert [size for size, _ in products] == [CALLERS]
    assert index.scans == []
    assert [pairs_of(one) for one in outputs] == [alone(index, query, 4) for query in queries]


def test_few_callers_share_one_scan(index: Watched, products: list[tuple[int, int]]) -> None:
    queries = queries_of(MULTIPLY_FROM - 1)
    outputs = ask(FlatIndexEngine(index), [SearchQuery(query, 4) for query in queries])
    assert products == []
    assert index.scans == [MULTIPLY_FROM - 1]
    assert MULTIPLY_FROM - 1 <= SCANNED
    assert [pairs_of(one) for one in outputs] == [alone(index, query, 4) for query in queries]


def test_different_ks_and_a_wrong_search_beside_them_share_a_step(
    index: Watched, products: list[tuple[int, int]]
) -> None:
    queries = queries_of(CALLERS)
    payloads = [SearchQuery(query, (4, 5, 40)[at % 3]) for at, query in enumerate(queries)]
    payloads[7] = SearchQuery(np.zeros(3), 4)
    outputs = ask(FlatIndexEngine(index), payloads)
    # One for k of 4 and 5, another for 40: none fetches more than twice what it asked for.
    assert sorted(size for size, _ in products) == [21, 42]
    assert index.scans == []
    assert isinstance(outputs[7].error, ConfigError)
    for at, (payload, output) in enumerate(zip(payloads, outputs, strict=True)):
        if at != 7:
            assert pairs_of(output) == alone(index, queries[at], payload.k)


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1)])
def test_a_product_leaves_a_core_to_the_callers(
    index: Watched,
    products: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    threads: int,
) -> None:
    monkeypatch.setattr(flat_index_engine, "usable_cores", lambda: cores)
    engine = FlatIndexEngine(index)
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(4)
    try:
        # So long that more threads would be tried.
        for _ in range(4):
            engine._product_threads.note(CALLERS * SIZE * DIMENSION, 1, 10.0)
        ask(engine, [SearchQuery(query, 4) for query in queries_of(CALLERS)])
        assert faiss.omp_get_max_threads() == 4
    finally:
        faiss.omp_set_num_threads(before)
    assert products == [(CALLERS, threads)]


@pytest.mark.parametrize("metric", [faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT])
def test_blocks_of_a_large_index_find_what_one_product_finds(
    vectors: Any, metric: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = faiss.IndexFlat(DIMENSION, metric)
    flat.add(vectors[:9_001])
    queries = queries_of(30)
    view = FlatView.of(flat)
    scores, places = fetch_together(view, queries, 12)
    monkeypatch.setattr(flat_products, "BLOCK_SCORES", 1)
    in_blocks, there = fetch_together(view, queries, 12)
    assert np.allclose(scores, in_blocks, rtol=1e-5, atol=1e-4)
    assert (places == there).mean() > 0.99  # but for near ties, which rounding may turn
    exact = vectors[:9_001] @ queries.T
    if metric == faiss.METRIC_L2:
        exact = 2 * exact - np.square(queries).sum(1) - np.square(vectors[:9_001]).sum(1)[:, None]
    assert np.allclose(scores, np.take_along_axis(exact.T, places, 1), rtol=1e-4, atol=1e-3)
    assert np.allclose(scores[:, -1], np.sort(exact, axis=0)[-12], rtol=1e-4, atol=1e-3)

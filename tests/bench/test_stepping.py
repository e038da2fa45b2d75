from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.results import Row, SuiteResult, as_json, from_json
from bench.suites import ratio_definitions, stepping
from bench.vectors import KINDS, IndexSize, build_index, make_mixture, stock_index
from rag_accel.engines.retrieval.shared_scans import SharedScans

pytest.importorskip("faiss")
pytest.importorskip("torch")

SIZE = IndexSize(2000, 16, 4, dimension=16)
SPARSE = IndexSize(2000, 64, 4, dimension=16)
TINY = stepping.Sizes(SIZE, repeats=3, small_vectors=400, small_queries=40, sparse=SPARSE)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> SuiteResult:
    """Run the suite once, as small as it gets."""
    return stepping.run(True, TINY, tmp_path_factory.mktemp("cache"))


def test_every_ratio_is_defined_and_the_result_is_valid_json(result: SuiteResult) -> None:
    assert from_json(as_json(result), "stepping") == result
    assert set(result.ratios) == set(ratio_definitions("stepping"))


def test_all_ids_are_equal_and_counted(result: SuiteResult) -> None:
    counted = [row for row in result.rows if row.metric == "queries_equal"]
    assert len(counted) == 6
    for row in counted:
        assert row.median == row.n
    assert {row.n for row in counted if "," not in row.workload} == {40}
    for kind in (*KINDS, "faiss"):
        assert result.ratios[f"ids_equal_{kind}"] == 1


def test_both_arms_of_every_size_are_timed(result: SuiteResult) -> None:
    timed = [(row.system, row.workload) for row in result.rows if row.metric == "latency_ms"]
    crowds = [("8-bit lists", count) for count in stepping.CROWDS]
    crowds += [("shared scan", count) for count in stepping.CROWDS[1:]]
    expected = [
        (system, f"{count} searches")
        for count in stepping.STEPPED
        for ours in ("in steps", "in steps, vectors")
        for system in (f"stock FAISS beside {ours}", ours)
    ]
    for where in ("", ", 64 clusters"):
        for ours, count in crowds:
            both = (f"stock FAISS beside {ours}", ours)
            expected += [(one, f"{count} queries{where}") for one in both]
    assert timed == expected
    assert len({row.key for row in result.rows}) == len(result.rows)


def test_searches_are_really_cut(result: SuiteResult) -> None:
    steps = [row.median for row in result.rows if row.metric == "steps"]
    assert len(steps) == 4
    assert min(steps) >= 2  # four clusters at most


def test_unequal_ids_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    search = SharedScans.search

    def reversed_search(self: SharedScans, crowd: object, threads: int) -> object:
        found = search(self, crowd, threads)  # type: ignore[arg-type]
        assert found is not None
        return [found[0][::-1], *found[1:]]

    monkeypatch.setattr(SharedScans, "search", reversed_search)
    rows: list[Row] = []
    share = stepping.compare_ids("uniform", KINDS["uniform"], TINY, rows)
    assert share == 1 - 2 / 40  # the first query of each metric's only crowd
    assert (rows[0].median, rows[0].n) == (38, 40)


def test_the_clusters_are_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_index(SIZE, tmp_path)
    monkeypatch.setattr("bench.vectors._train", None)
    second = build_index(SIZE, tmp_path)
    query = make_mixture(16).draw(1, 5)
    assert first.search(query, 10) == second.search(query, 10)
    assert len(first) == len(second) == SIZE.vectors
    assert [path.suffix for path in tmp_path.iterdir()] == [".npz"]


def test_the_stock_index_searches_the_same_vectors(tmp_path: Path) -> None:
    index = build_index(SIZE, tmp_path)
    queries = make_mixture(16).draw(20, 5)
    labels = stock_index(index, SIZE.nprobe).search(queries, 5)[1]
    ours = [[int(hit.document.id) for hit in row] for row in index.search(queries, 5)]
    assert np.array_equal(labels, ours)


def test_the_mixture_gives_unit_vectors_that_follow_from_the_seed() -> None:
    mixture = make_mixture(16)
    drawn = mixture.draw(50, 1)
    assert drawn.dtype == np.float32
    assert np.allclose(np.linalg.norm(drawn, axis=1), 1, atol=1e-5)
    assert np.array_equal(drawn, mixture.draw(50, 1))
    assert not np.array_equal(drawn, mixture.draw(50, 2))

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.answers import too_few
from bench.baselines.faiss_coded import FaissCoded
from bench.research.equal_ids import EQUAL, compare_ids
from bench.research.suites import stepping
from bench.results import Row, SuiteResult, as_json, from_json
from bench.search_arms import (
    DOCUMENTS,
    EXACT,
    FLOAT32,
    OURS,
    SQ8_REFINE,
    arms_of,
    coded_searches,
    in_turn,
    labels_of,
)
from bench.suites import ratio_definitions
from bench.vectors import KINDS, IndexSize, build_index, make_mixture, stock_index
from rag_accel.engines.retrieval.coded.codes import CodedVectors
from rag_accel.engines.retrieval.coded.searches import CodedSearches
from rag_accel.errors import EngineError

pytest.importorskip("faiss")

SIZE = IndexSize(2000, 16, 8, dimension=16)
TINY = stepping.Sizes(SIZE, 50, {1: 3, 16: 2, 64: 2}, 3, small_vectors=400, small_queries=40)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> SuiteResult:
    """Run the suite once, as small as it gets."""
    return stepping.run(True, TINY, tmp_path_factory.mktemp("cache"))


def test_every_ratio_is_defined_and_the_result_is_valid_json(result: SuiteResult) -> None:
    assert from_json(as_json(result), "stepping") == result
    assert set(result.ratios) == set(ratio_definitions("stepping"))


def test_no_two_rows_are_about_the_same(result: SuiteResult) -> None:
    names = Counter((row.system, row.workload, row.metric) for row in result.rows)
    assert max(names.values()) == 1


def test_all_ids_are_equal_and_counted(result: SuiteResult) -> None:
    counted = {(row.system, row.workload): row.n for row in result.rows if row.metric == EQUAL}
    large = 3 * (3 * 1 + 2 * 16 + 2 * 64)  # in three regimes
    expected = {(system, "large index"): large for system in (EXACT, DOCUMENTS)}
    expected |= {("in steps", f"{one}"): n for one, n in (("1 search", 3), ("32 searches", 96))}
    expected |= {("by codes", kind): 40 for kind in KINDS}
    assert counted == expected
    assert result.wrong == ()
    for kind in (*KINDS, "large"):
        assert result.ratios[f"ids_equal_{kind}"] == 1


def test_every_arm_is_timed_in_every_regime_and_has_its_recall(result: SuiteResult) -> None:
    timed = {row.workload: 0 for row in result.rows if row.metric == "latency_ms"}
    for row in result.rows:
        timed[row.workload] = timed.get(row.workload, 0) + (row.metric == "latency_ms")
    regimes = ("least nprobe", "4 x least nprobe", "nprobe 8")
    for regime in regimes:
        for count in ("1 query", "16 queries", "64 queries"):
            assert timed[f"{count}, {regime}"] == len({*OURS, SQ8_REFINE, FLOAT32})
    recalls = {
        (row.system, row.workload): row.median
        for row in result.rows
        if row.metric == "recall_at_10"
    }
    assert set(recalls) == {(one, regime) for one in (EXACT, SQ8_REFINE) for regime in regimes}
    assert all(0.99 <= recalls[EXACT, regime] <= 1 for regime in regimes)


def test_the_least_number_of_clusters_is_visited(result: SuiteResult) -> None:
    visited = {row.workload: row.median for row in result.rows if row.metric == "nprobe"}
    least = visited["least nprobe"]
    assert 1 < least < 16
    assert visited["4 x least nprobe"] == min(16, 4 * least)


def test_searches_are_really_cut(result: SuiteResult) -> None:
    steps = [row.median for row in result.rows if row.metric == "steps"]
    assert len(steps) == 2
    assert min(steps) >= 3  # eight clusters at most


def test_a_wrong_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    search = CodedSearches.search

    def reversed_search(self: CodedSearches, crowd: Any) -> Any:
        found = search(self, crowd)
        assert found is not None
        return [found[0][::-1], *found[1:]]

    monkeypatch.setattr(CodedSearches, "search", reversed_search)
    rows: list[Row] = []
    share = compare_ids("uniform", 400, 40, rows)
    assert share == 1 - 2 / 40  # the first query of each metric's only crowd
    assert (rows[0].median, rows[0].n) == (38, 40)
    assert too_few(rows, EQUAL) == ("by codes, uniform: queries_equal is 38, must be all 40",)


def test_a_certificate_that_proves_too_much_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: Callable[[SuiteResult], int]
) -> None:
    # Codes that show vectors far from where they are, believed to the last bit.
    monkeypatch.setattr(CodedVectors, "highest", lambda self, lengths, found: found - 1e3)
    monkeypatch.setattr(CodedVectors, "first_count", lambda self, limit: limit)
    result = stepping.run(True, TINY, tmp_path)
    assert ended(result) == 1
    assert result.ratios["ids_equal_large"] < 1
    assert any("large index" in one for one in result.wrong)


def test_arms_take_turns_and_none_follows_another_with_the_same_queries() -> None:
    went: list[tuple[str, int]] = []

    def arm(name: str) -> Any:
        def search(queries: Any, nprobe: int) -> Any:
            went.append((name, queries))
            return f"{name}{queries}"

        return search

    arms = {name: arm(name) for name in "abc"}
    times, found = in_turn(arms, [0, 1, 2, 3, 4, 5], 5)  # type: ignore[list-item]
    turns = [went[start : start + 3] for start in range(3, len(went), 3)]
    assert ["".join(name for name, _ in turn) for turn in turns] == ["abc", "bca", "cab"] * 2
    assert all(len({queries for _, queries in turn}) == 3 for turn in turns)
    for name in "abc":
        assert found[name] == [f"{name}{queries}" for queries in range(6)]
        assert len(times[name]) == 6


def test_every_arm_finds_the_same(tmp_path: Path) -> None:
    index = build_index(SIZE, tmp_path)
    queries = make_mixture(16).draw(40, 5)
    with coded_searches(index) as coded:
        arms = arms_of(index, coded, FaissCoded(index, k_factor=4), 5)
        found = {name: labels_of(arm(queries, 3)).tolist() for name, arm in arms.items()}
    assert len({str(one) for one in found.values()}) == 1


def test_the_least_factor_with_the_ids_of_the_exact_search_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = build_index(SIZE, tmp_path)
    baseline = FaissCoded(index)
    exact = np.arange(20).reshape(4, 5)

    def search(self: FaissCoded, queries: Any, k: int, nprobe: int) -> Any:
        return None, exact if self._refined.k_factor >= 2 else exact[:, ::-1]

    monkeypatch.setattr(FaissCoded, "search", search)
    assert baseline.least_k_factor(exact, exact, 8) == baseline._refined.k_factor == 2
    with pytest.raises(EngineError, match="find other ids"):
        baseline.least_k_factor(exact, exact, 8, (1.0, 1.5))


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

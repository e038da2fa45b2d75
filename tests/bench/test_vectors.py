"""The indexes that benchmarks search: mixtures drawn from seeds, clusters found once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.baselines.faiss_coded import FaissCoded
from bench.vectors import IndexSize, build_index, make_mixture, stock_index

pytest.importorskip("faiss")

SIZE = IndexSize(2000, 16, 8, dimension=16)


def test_the_clusters_are_found_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_index(SIZE, tmp_path)
    monkeypatch.setattr("bench.vectors._train", None)
    second = build_index(SIZE, tmp_path)
    query = make_mixture(16).draw(1, 5)
    assert first.search(query, 10) == second.search(query, 10)
    assert len(first) == len(second) == SIZE.vectors
    assert [path.suffix for path in tmp_path.iterdir()] == [".npz"]


def test_indexes_of_faiss_alone_find_the_same(tmp_path: Path) -> None:
    index = build_index(SIZE, tmp_path)
    queries = make_mixture(16).draw(20, 5)
    ours = [[int(hit.document.id) for hit in row] for row in index.search(queries, 5)]
    assert np.array_equal(stock_index(index, SIZE.nprobe).search(queries, 5)[1], ours)
    assert np.array_equal(FaissCoded(index, k_factor=4).search(queries, 5, SIZE.nprobe)[1], ours)


def test_the_mixture_gives_unit_vectors_that_follow_from_the_seed() -> None:
    mixture = make_mixture(16)
    drawn = mixture.draw(50, 1)
    assert drawn.dtype == np.float32
    assert np.allclose(np.linalg.norm(drawn, axis=1), 1, atol=1e-5)
    assert np.array_equal(drawn, mixture.draw(50, 1))
    assert not np.array_equal(drawn, mixture.draw(50, 2))

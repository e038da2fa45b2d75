"""Scans in pieces find what one call finds, whatever the pieces and threads."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_accel.engines.retrieval.vectors.cluster_scans import ClusterScan, ScanPiece, advance
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors
from rag_accel.engines.retrieval.vectors.spec import IndexKind, IndexSpec, Metric, Vectors
from rag_accel.engines.retrieval.vectors.vectors import NO_LABEL, Labels, Scores, SearchScope

COUNT = 600
DIMENSION = 8


def vectors_of(metric: Metric) -> tuple[IvfVectors, Vectors]:
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((COUNT, DIMENSION)).astype(np.float32)
    spec = IndexSpec(DIMENSION, metric, IndexKind.IVF, num_clusters=20, nprobe=9, train_size=20)
    return IvfVectors.train(spec, np.arange(COUNT), vectors), vectors


@pytest.fixture(params=list(Metric), scope="module")
def indexed(request: pytest.FixtureRequest) -> tuple[IvfVectors, Vectors]:
    return vectors_of(request.param)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=5),
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=6),
    threads=st.integers(1, 3),
)
def test_pieces_find_what_one_call_finds(
    indexed: tuple[IvfVectors, Vectors], rows: list[int], sizes: list[int], threads: int
) -> None:
    index, vectors = indexed
    queries = vectors[rows] + np.float32(0.25)
    scope = SearchScope(COUNT)
    scores, labels = index.fetch(queries, 12, scope)
    scans = index.begin(queries, 12, scope)
    turn = 0
    while unread := [scan for scan in scans if not scan.is_over]:
        size = sizes[turn % len(sizes)]
        pieces = [ScanPiece(scan, scan.position, scan.until(size)) for scan in unread]
        index.advance(pieces, threads)
        turn += 1
    assert np.array_equal(np.stack([scan.labels for scan in scans]), labels)
    assert np.array_equal(np.stack([scan.scores for scan in scans]), scores)
    assert all(scan.num_left == 0 for scan in scans)


def test_a_filter_holds_in_every_piece(indexed: tuple[IvfVectors, Vectors]) -> None:
    index, vectors = indexed
    scope = SearchScope(50, np.arange(0, COUNT, 12), nprobe=20)
    (scan,) = index.begin(vectors[:1], 60, scope)
    while not scan.is_over:
        index.advance([ScanPiece(scan, scan.position, scan.until(40))], 2)
    found = scan.labels[scan.labels != NO_LABEL]
    assert sorted(found.tolist()) == list(range(0, COUNT, 12))


def test_a_stopped_scan_reads_no_more(indexed: tuple[IvfVectors, Vectors]) -> None:
    index, vectors = indexed
    (scan,) = index.begin(vectors[:1], 5, SearchScope(COUNT))
    index.advance([ScanPiece(scan, 0, 3)], 1)
    read = scan.num_read
    scan.stop()
    assert (scan.is_over, scan.num_left, scan.num_vectors) == (True, 0, read)


class BrokenLists:
    def read(
        self, queries: Vectors, count: int, clusters: Labels, coarse: Scores, selector: object
    ) -> tuple[Scores, Labels]:
        if int(clusters.max()) >= 2:
            raise MemoryError("no room")
        return np.ones((len(queries), count), np.float32), np.zeros((len(queries), count), np.int64)


def test_a_failed_read_leaves_every_scan_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rag_accel.engines.retrieval.vectors.cluster_scans.LEAST_SHARE", 1)
    query, sizes = np.zeros(DIMENSION, np.float32), np.full(4, 10)
    scan = ClusterScan(query, 1, np.arange(4), np.zeros(4, np.float32), sizes)
    with pytest.raises(MemoryError):
        advance(BrokenLists(), [ScanPiece(scan, 0, 4)], 2)
    assert scan.position == 0
    assert scan.labels.tolist() == [NO_LABEL]


def test_an_interrupted_read_returns_once_no_thread_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller lets go of the index, whose memory may then change."""
    joined, reading, release = threading.Event(), threading.Event(), threading.Event()
    plain_join = threading.Thread.join

    def interrupted_once(thread: threading.Thread, timeout: float | None = None) -> None:
        if not joined.is_set():
            joined.set()
            threading.Timer(0.05, release.set).start()
            raise KeyboardInterrupt
        plain_join(thread, timeout)

    class Waiting:
        def read(self, queries: Any, count: int, clusters: Any, coarse: Any, selector: Any) -> Any:
            if threading.current_thread().name == "rag-accel-scan":
                reading.set()
                assert release.wait(20)
                reading.clear()
            return np.ones((1, 1), np.float32), np.zeros((1, 1), np.int64)

    monkeypatch.setattr("rag_accel.engines.retrieval.vectors.cluster_scans.LEAST_SHARE", 1)
    monkeypatch.setattr(threading.Thread, "join", interrupted_once)
    query, sizes = np.zeros(DIMENSION, np.float32), np.full(4, 10)
    scan = ClusterScan(query, 1, np.arange(4), np.zeros(4, np.float32), sizes)
    with pytest.raises(KeyboardInterrupt):
        advance(Waiting(), [ScanPiece(scan, 0, 4)], 2)
    assert not reading.is_set()
    assert scan.position == 0

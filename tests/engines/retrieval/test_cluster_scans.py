"""Scans in pieces find what one call finds, whatever the pieces and threads."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

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

"""Who is read when: order, riders, time and cancellation, on a clock that only scans move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rag_accel.engine_api import (
    Document,
    EngineOutput,
    EngineRequest,
    IngestBatch,
    PrimitiveKind,
    SearchQuery,
    StepBudget,
    WorkId,
)
from rag_accel.engines.retrieval import (
    DocumentIndex,
    IndexKind,
    IndexSnapshot,
    IndexSpec,
    RetrievalEngine,
    TrainedClusters,
)
from rag_accel.engines.retrieval.stepped import pool as pool_module
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors
from rag_accel.engines.retrieval.vectors.vectors import SearchScope
from rag_accel.errors import ConfigError
from rag_accel.testing import ManualClock

CLUSTERS = 10
PER_CLUSTER = 8
PER_VECTOR_S = 1.0  # a cluster takes 8 s for each search that reads it

Scans = list[dict[str, list[int]]]


class Stepper:
    """Drive an engine whose clusters are the ten axes; note what every scan reads for whom.

    Cluster ``c`` holds the documents ``c0`` to ``c7``, and a query is named by the clusters it
    visits, nearest first.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.scans: Scans = []
        self.names: dict[bytes, str] = {}
        axes = np.eye(CLUSTERS, dtype=np.float32)
        cluster_of = np.repeat(np.arange(CLUSTERS, dtype=np.int64), PER_CLUSTER)
        lengths = np.tile(np.arange(PER_CLUSTER, 0, -1, dtype=np.float32), CLUSTERS)
        ids = [f"{c}{n}" for c in range(CLUSTERS) for n in range(PER_CLUSTER)]
        index = DocumentIndex.from_snapshot(
            IndexSnapshot(
                IndexSpec(CLUSTERS, kind=IndexKind.IVF),
                tuple(Document(id, "", {"even": int(id) % 2 == 0}) for id in ids),
                axes[cluster_of] * lengths[:, None],  # none as near as another
                TrainedClusters(axes, cluster_of),
            )
        )
        self.engine = RetrievalEngine(index, sliced_from_s=0.0, clock=self.clock)
        scan = IvfVectors.scan

        def timed(vectors: IvfVectors, queries: Any, width: int, clusters: Any, sel: Any) -> Any:
            read = {
                self.names[query.tobytes()]: [c for c in row.tolist() if c >= 0]
                for query, row in zip(queries, clusters, strict=True)
            }
            self.scans.append(read)
            self.clock.advance(PER_VECTOR_S * PER_CLUSTER * sum(map(len, read.values())))
            return scan(vectors, queries, width, clusters, sel)

        fetch = IvfVectors.fetch

        def timed_whole(vectors: IvfVectors, queries: Any, count: int, scope: SearchScope) -> Any:
            num_visited = vectors.num_visited(scope.allowed is not None, scope.nprobe)
            self.clock.advance(PER_VECTOR_S * PER_CLUSTER * num_visited * len(queries))
            return fetch(vectors, queries, count, scope)

        monkeypatch.setattr(IvfVectors, "scan", timed)
        monkeypatch.setattr(IvfVectors, "fetch", timed_whole)
        for where in (None, {"even": True}):  # let the engine learn what this clock makes of it
            for time_s in (100.0, None):
                self.submit("warm", [0], where=where)
                self.step(time_s)
        self.scans.clear()

    def submit(self, id: str, clusters: list[int], k: int = 1, **rest: Any) -> None:
        vector = np.zeros(CLUSTERS, dtype=np.float32)
        vector[clusters] = np.arange(len(clusters), 0, -1) + len(self.names) / 1000
        self.names[vector.tobytes()] = id
        query = SearchQuery(vector, k, nprobe=rest.pop("nprobe", len(clusters)), **rest)
        self.engine.submit([EngineRequest(WorkId(id), "r", PrimitiveKind.SEARCHING, query)])

    def ingest(self, id: str) -> None:
        batch = IngestBatch((Document(id, ""),), np.eye(CLUSTERS, dtype=np.float32)[:1])
        self.engine.submit([EngineRequest(WorkId(id), "r", PrimitiveKind.INGESTION, batch)])

    def step(self, time_s: float | None) -> list[str]:
        """Return the ids that have ended."""
        return [output.id for output in self.outputs(time_s)]

    def outputs(self, time_s: float | None) -> list[EngineOutput]:
        return list(self.engine.step(StepBudget(time_s)))

    def read(self) -> Scans:
        scans, self.scans = self.scans, []
        return scans


@pytest.fixture
def stepper(monkeypatch: pytest.MonkeyPatch) -> Stepper:
    """Give an engine over ten clusters of eight equal vectors."""
    return Stepper(monkeypatch)


def test_a_step_reads_as_many_clusters_as_its_time_allows(stepper: Stepper) -> None:
    stepper.submit("a", [3, 1, 4, 5, 9])
    assert stepper.step(16.0) == []
    assert stepper.read() == [{"a": [3, 1]}]
    assert stepper.step(23.9) == []
    assert stepper.read() == [{"a": [4, 5]}]
    assert stepper.step(16.0) == ["a"]
    assert stepper.read() == [{"a": [9]}]


def test_a_step_without_time_reads_one_cluster_nevertheless(stepper: Stepper) -> None:
    stepper.submit("a", [3, 1])
    assert stepper.step(0.0) == []
    assert stepper.step(0.0) == ["a"]
    assert stepper.read() == [{"a": [3]}, {"a": [1]}]


def test_what_fits_into_the_step_is_searched_in_one_call(stepper: Stepper) -> None:
    stepper.submit("a", [3, 1])
    stepper.submit("b", [2, 7, 8])
    assert stepper.step(1000.0) == ["a", "b"]
    assert stepper.read() == []  # the whole search does not go through slices


def test_the_oldest_says_what_is_read_and_the_others_ride_along(stepper: Stepper) -> None:
    stepper.submit("old", [0, 1, 2, 3])
    stepper.submit("young", [7, 2, 0, 8])
    assert stepper.step(24.0) == []
    assert stepper.read() == [{"old": [0, 1], "young": [0]}]
    assert stepper.step(None) == ["old"]
    assert stepper.read() == [{"old": [2, 3], "young": [2]}]
    assert stepper.step(None) == ["young"]
    assert stepper.read() == [{"young": [7, 8]}]


def test_the_next_one_goes_on_in_the_time_that_is_left(stepper: Stepper) -> None:
    stepper.submit("a", [0, 1])
    stepper.submit("b", [2, 3])
    assert stepper.step(24.0) == ["a"]
    assert stepper.read() == [{"a": [0, 1]}, {"b": [2]}]


def test_without_a_time_a_step_ends_with_the_first_that_ends(stepper: Stepper) -> None:
    stepper.submit("long", [0, 1, 2, 3])
    stepper.submit("short", [1])
    stepper.submit("other", [5])
    assert stepper.step(None) == ["long", "short"]
    assert stepper.step(None) == ["other"]


def test_what_several_read_is_cut_so_that_it_stays_in_the_cache(
    stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "MAX_SHARED_BYTES", 2 * PER_CLUSTER * CLUSTERS * 4)
    stepper.submit("a", [0, 1, 2, 3])
    stepper.submit("b", [3, 1, 2, 6, 7, 8, 9])
    assert stepper.step(None) == ["a"]
    assert stepper.read() == [{"a": [0, 1], "b": [1]}, {"a": [2, 3], "b": [2, 3]}]
    assert stepper.step(None) == ["b"]
    assert stepper.read() == [{"b": [6, 7, 8, 9]}]


def test_a_newcomer_joins_at_the_next_border_behind_the_others(stepper: Stepper) -> None:
    stepper.submit("a", [0, 1, 2])
    stepper.step(8.0)
    stepper.submit("b", [5, 0, 1])
    assert stepper.step(0.0) == []
    assert stepper.step(0.0) == ["a"]
    assert stepper.read() == [{"a": [0]}, {"a": [1], "b": [1]}, {"a": [2]}]
    assert stepper.step(None) == ["b"]
    assert stepper.read() == [{"b": [5, 0]}]


def test_a_cancelled_search_leaves_at_once(stepper: Stepper) -> None:
    stepper.submit("a", [0, 1, 2])
    stepper.submit("b", [2, 0])
    stepper.step(0.0)
    stepper.engine.cancel([WorkId("a")])
    assert stepper.step(None) == ["b"]
    assert stepper.read() == [{"a": [0], "b": [0]}, {"b": [2]}]
    assert stepper.step(None) == []


def test_a_search_cancelled_before_its_first_step_is_never_read(stepper: Stepper) -> None:
    stepper.submit("a", [0, 1, 2])
    stepper.step(0.0)
    stepper.submit("b", [0, 1])
    stepper.engine.cancel([WorkId("b"), WorkId("unknown")])
    assert stepper.step(None) == ["a"]
    assert stepper.read() == [{"a": [0]}, {"a": [1, 2]}]


def test_filters_and_sizes_that_differ_are_read_in_calls_of_their_own(stepper: Stepper) -> None:
    stepper.submit("plain", [0, 1])
    stepper.submit("large", [0, 1], k=30)
    stepper.submit("even", [0, 1], where={"even": True})
    stepper.submit("also even", [1, 0], where={"even": True})
    assert stepper.step(0.0) == []
    assert stepper.read() == [{"plain": [0]}, {"large": [0]}, {"even": [0], "also even": [0]}]


def test_close_forgets_half_done_searches(stepper: Stepper) -> None:
    stepper.submit("a", [0, 1, 2])
    stepper.step(0.0)
    stepper.ingest("late")
    stepper.engine.close()
    assert stepper.step(None) == []


def test_an_ingestion_waits_for_the_searches_before_it_only(stepper: Stepper) -> None:
    stepper.submit("before", [0, 1, 2])
    stepper.step(0.0)
    stepper.ingest("new")
    stepper.submit("with it", [4, 5])
    assert stepper.step(0.0) == []
    stepper.submit("after", [6, 4])
    assert [stepper.step(0.0) for _ in range(4)] == [["before"], [], ["with it", "new"], []]
    assert stepper.step(None) == ["after"]


def test_a_cancelled_ingestion_is_never_taken(stepper: Stepper) -> None:
    stepper.submit("a", [0, 1, 2])
    stepper.step(0.0)
    stepper.ingest("new")
    stepper.step(0.0)
    stepper.engine.cancel([WorkId("new")])
    assert stepper.step(None) == ["a"]
    assert stepper.step(None) == []
    assert len(stepper.engine.index) == CLUSTERS * PER_CLUSTER


def test_a_bad_search_is_reported_although_a_long_one_is_half_done(stepper: Stepper) -> None:
    stepper.submit("a", [0, 1, 2])
    stepper.step(0.0)
    stepper.engine.submit(
        [EngineRequest(WorkId("bad"), "r", PrimitiveKind.SEARCHING, SearchQuery([1.0], 1))]
    )
    (bad,) = stepper.outputs(None)
    assert isinstance(bad.error, ConfigError)
    assert stepper.step(None) == ["a"]


def test_a_search_that_fails_inside_a_shared_scan_fails_alone(
    stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan: Callable[..., Any] = IvfVectors.scan

    def fail_for_seven(self: Any, queries: Any, *rest: Any) -> Any:
        if queries[:, 7].any():
            raise MemoryError("too large")
        return scan(self, queries, *rest)

    monkeypatch.setattr(IvfVectors, "scan", fail_for_seven)
    stepper.submit("good", [0, 1])
    stepper.submit("bad", [1, 7])
    stepper.submit("fine", [1, 2])
    outputs = [output for _ in range(4) for output in stepper.outputs(None)]
    ended = {output.id: output for output in outputs}
    assert isinstance(ended[WorkId("bad")].error, MemoryError)
    assert [hit.document.id for hit in ended[WorkId("good")].value] == ["00"]
    assert [hit.document.id for hit in ended[WorkId("fine")].value] == ["10"]
    assert len(outputs) == 3


def test_a_search_that_fails_at_its_end_fails_alone(
    stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    gather: Callable[..., Any] = IvfVectors.gather

    def fail_for_seven(self: Any, labels: Any) -> Any:
        if (labels // PER_CLUSTER == 7).any():
            raise MemoryError("too large")
        return gather(self, labels)

    monkeypatch.setattr(IvfVectors, "gather", fail_for_seven)
    stepper.submit("good", [0])
    stepper.submit("bad", [7, 0])
    outputs = [output for _ in range(3) for output in stepper.outputs(None)]
    assert {output.id: output.kind for output in outputs} == {"good": "final", "bad": "error"}

"""Documents come and go while a search is half done: it answers from the index as it ends."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rag_accel.engine_api import (
    Document,
    EngineOutput,
    EngineRequest,
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
from rag_accel.engines.retrieval.stepped.pool import MAX_RESTARTS
from rag_accel.engines.retrieval.stepped.scan import ClusterScan, ScanFilter
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors
from rag_accel.testing import ManualClock

CLUSTERS = 8
PER_CLUSTER = 5
GROUP = 6
WAIT_S = 60.0

Change = Callable[[DocumentIndex], None]


class Stepper:
    """Drive an engine over eight clusters, of which a step without time reads one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        axes = np.eye(CLUSTERS, dtype=np.float32)
        cluster_of = np.repeat(np.arange(CLUSTERS, dtype=np.int64), PER_CLUSTER)
        lengths = np.tile(np.arange(PER_CLUSTER, 0, -1, dtype=np.float32), CLUSTERS)
        documents = tuple(Document(f"d{n}", "old") for n in range(len(cluster_of)))
        clusters = TrainedClusters(axes, cluster_of)
        spec = IndexSpec(CLUSTERS, kind=IndexKind.IVF)
        rows = axes[cluster_of] * lengths[:, None]
        self.index = DocumentIndex.from_snapshot(IndexSnapshot(spec, documents, rows, clusters))
        clock = ManualClock()
        self.engine = RetrievalEngine(self.index, sliced_from_s=0.0, clock=clock)
        self.num_scans = 0
        scan = IvfVectors.scan

        def timed(vectors: IvfVectors, *rest: Any) -> Any:
            self.num_scans += 1
            clock.advance(1.0)
            return scan(vectors, *rest)

        monkeypatch.setattr(IvfVectors, "scan", timed)
        self.submit("warm", 0, 1)
        self.step(None)

    def submit(self, id: str, axis: int = 0, nprobe: int = CLUSTERS, k: int = 3) -> None:
        vector = np.full(CLUSTERS, 0.5, dtype=np.float32)
        vector[axis] = 1.0
        query = SearchQuery(vector, k, nprobe=nprobe)
        self.engine.submit([EngineRequest(WorkId(id), "r", PrimitiveKind.SEARCHING, query)])

    def step(self, time_s: float | None = 0.0) -> dict[str, list[str]]:
        """Return the documents of the searches that have ended."""
        return {output.id: self.documents(output) for output in self.outputs(time_s)}

    def outputs(self, time_s: float | None) -> list[EngineOutput]:
        return list(self.engine.step(StepBudget(time_s)))

    def documents(self, output: EngineOutput) -> list[str]:
        assert output.error is None
        return [hit.document.id for hit in output.value]

    def steps_to(self, id: str) -> tuple[int, list[str]]:
        for number in range(1, 1000):
            if id in (found := self.step()):
                return number, found[id]
        raise AssertionError(f"{id} does not end")


@pytest.fixture
def stepper(monkeypatch: pytest.MonkeyPatch) -> Stepper:
    """Give an engine over 40 documents, ``d0`` the nearest of the first axis."""
    return Stepper(monkeypatch)


def _delete(index: DocumentIndex) -> None:
    index.delete(["d0"])


def _add(index: DocumentIndex) -> None:
    index.add([Document("new", "")], 9 * np.eye(CLUSTERS)[:1])


def _add_elsewhere(index: DocumentIndex) -> None:
    index.add([Document("new", "")], 99 * np.eye(CLUSTERS)[7:])


def _replace(index: DocumentIndex) -> None:
    index.add([Document("d0", "changed")], np.eye(CLUSTERS)[5:6])


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (_delete, ["d1", "d2", "d5"]),
        (_add, ["new", "d0", "d1"]),
        (_add_elsewhere, ["new", "d0", "d1"]),
        (_replace, ["d1", "d2", "d5"]),
    ],
)
@pytest.mark.parametrize("after", [1, 4, 7])
def test_a_half_done_search_answers_from_the_changed_index(
    stepper: Stepper, change: Change, found: list[str], after: int
) -> None:
    stepper.submit("s")
    for _ in range(after):
        assert stepper.step() == {}
    change(stepper.index)
    assert stepper.steps_to("s")[1] == found


def test_a_document_deleted_and_put_back_is_found_once(stepper: Stepper) -> None:
    stepper.submit("s")
    stepper.step()
    stepper.index.delete(["d0"])
    stepper.step()
    stepper.index.add([Document("d0", "")], 5 * np.eye(CLUSTERS)[:1])
    assert stepper.steps_to("s")[1] == ["d0", "d1", "d2"]


def test_a_search_whose_index_is_emptied_finds_nothing(stepper: Stepper) -> None:
    stepper.submit("s")
    stepper.step()
    stepper.index.delete(f"d{number}" for number in range(CLUSTERS * PER_CLUSTER))
    assert stepper.step() == {"s": []}
    assert stepper.step() == {}


def test_a_larger_index_gives_more_to_a_search_that_asked_for_more(stepper: Stepper) -> None:
    stepper.submit("s", k=100)
    stepper.step()
    _add(stepper.index)
    assert len(stepper.steps_to("s")[1]) == CLUSTERS * PER_CLUSTER + 1


def test_a_query_may_be_overwritten_between_steps(stepper: Stepper) -> None:
    vector = 2 * np.eye(CLUSTERS, dtype=np.float32)[3]
    query = SearchQuery(vector, 2, nprobe=CLUSTERS)
    stepper.engine.submit([EngineRequest(WorkId("s"), "r", PrimitiveKind.SEARCHING, query)])
    assert stepper.step() == {}
    vector[:] = -1
    assert stepper.steps_to("s")[1] == ["d15", "d16"]


def test_a_change_makes_a_half_done_search_begin_again(stepper: Stepper) -> None:
    stepper.submit("s")
    for _ in range(5):
        stepper.step()
    _add(stepper.index)
    assert stepper.steps_to("s")[0] == CLUSTERS


def test_a_search_ends_although_the_index_changes_before_every_step(stepper: Stepper) -> None:
    stepper.submit("s")
    for number in range(MAX_RESTARTS + 1):
        assert stepper.step() == ({} if number < MAX_RESTARTS else {"s": ["d0", "d1", "d2"]})
        stepper.index.add([Document("other", str(number))], np.zeros((1, CLUSTERS)))


def test_searches_that_keep_beginning_again_end_one_after_the_other(stepper: Stepper) -> None:
    stepper.submit("a", axis=0)
    stepper.submit("b", axis=1)
    stepper.submit("c", axis=2, nprobe=2)
    ended: list[str] = []
    for number in range(3 * (MAX_RESTARTS + 1)):
        ended += stepper.step()
        stepper.index.add([Document("other", str(number))], np.zeros((1, CLUSTERS)))
    assert sorted(ended) == ["a", "b", "c"]
    assert stepper.num_scans < 3 * (MAX_RESTARTS + 1) * CLUSTERS


def test_a_scan_is_of_no_other_version_and_of_no_other_clusters(stepper: Stepper) -> None:
    with stepper.index.reading():
        view = stepper.index.view()
        filter = ScanFilter.of(view, None, None)
        scan = ClusterScan(view, np.ones(CLUSTERS, dtype=np.float32), 1, 1, filter)
        assert scan.is_of(view)
        assert not scan.is_of(replace(view, version=view.version + 1))
        retrained = IvfVectors(stepper.index.spec, np.eye(CLUSTERS, dtype=np.float32))
        assert not scan.is_of(replace(view, vectors=retrained))


def test_a_change_waits_for_one_piece_and_not_for_the_search(
    stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = IvfVectors.scan
    adding = threading.Thread(target=_add, args=(stepper.index,))
    seen: list[int] = []

    def scan_and_see(vectors: IvfVectors, *rest: Any) -> Any:
        if not seen:
            adding.start()
            adding.join(0.2)  # without a lock it would be over by now
        seen.append(len(vectors))
        return scan(vectors, *rest)

    monkeypatch.setattr(IvfVectors, "scan", scan_and_see)
    stepper.submit("s")
    stepper.step()
    adding.join(WAIT_S)
    assert len(stepper.index) == CLUSTERS * PER_CLUSTER + 1
    assert stepper.steps_to("s")[1] == ["new", "d0", "d1"]
    assert seen == [CLUSTERS * PER_CLUSTER] + [CLUSTERS * PER_CLUSTER + 1] * CLUSTERS


def test_searches_see_all_of_a_change_of_another_thread_or_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stepper = Stepper(monkeypatch)
    best = np.full((GROUP, CLUSTERS), 0.1, dtype=np.float32)
    best[np.arange(GROUP), np.arange(GROUP)] = 100.0  # one for each of six clusters
    stop = threading.Event()

    def keep_changing() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            documents = [Document(f"best{place}", str(number)) for place in range(GROUP)]
            stepper.index.add(documents, best)
            if number % 3 == 0:
                stepper.index.delete(document.id for document in documents)

    changing = threading.Thread(target=keep_changing)
    changing.start()
    try:
        for number in range(40):
            for place in range(3):
                stepper.submit(f"s{number} {place}", axis=place, k=GROUP)
            num_ended = 0
            for _ in range(1000):
                outputs = stepper.outputs(0.0)
                num_ended += len(outputs)
                for output in outputs:
                    best_hits = [hit for hit in output.value if hit.document.id[0] == "b"]
                    versions = Counter(hit.document.text for hit in best_hits)
                    assert list(versions.values()) in ([], [GROUP]), versions
                if num_ended == 3:
                    break
            assert num_ended == 3
    finally:
        stop.set()
        changing.join(WAIT_S)
    assert not changing.is_alive()

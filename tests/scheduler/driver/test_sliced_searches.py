"""A step that has a budget ends at a border, and a short search passes a long one there."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from driver_harness import PATIENCE_S, LeafCall, Rig

from rag_accel.engine_api import (
    Capability,
    Document,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    PrimitiveKind,
    SearchQuery,
    StepBudget,
    WorkId,
)
from rag_accel.engines.retrieval import DocumentIndex, IndexKind, IndexSpec, RetrievalEngine
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors
from rag_accel.engines.retrieval.vectors.vectors import SearchScope
from rag_accel.scheduler.messages import LeafArrived, NodeKey, NodeSpec
from rag_accel.testing import ManualClock

DIMENSION = 8
CLUSTERS = 32
OPTIONS = {"slice_min_s": 0.01, "slice_max_s": 0.01, "batch_wait_s": 0.0}


class Scanned:
    """Hold an index whose scans move a clock: a millisecond for each ten vectors compared."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = ManualClock()
        self.index = make_index()
        scan, fetch = IvfVectors.scan, IvfVectors.fetch

        def timed(vectors: IvfVectors, queries: Any, width: int, clusters: Any, sel: Any) -> Any:
            self.clock.advance(float(vectors.cluster_sizes()[clusters[clusters >= 0]].sum()) / 1e4)
            return scan(vectors, queries, width, clusters, sel)

        def timed_whole(vectors: IvfVectors, queries: Any, count: int, scope: SearchScope) -> Any:
            visited = vectors.num_visited(scope.allowed is not None, scope.nprobe)
            self.clock.advance(len(queries) * visited * len(vectors) / CLUSTERS / 1e4)
            return fetch(vectors, queries, count, scope)

        monkeypatch.setattr(IvfVectors, "scan", timed)
        monkeypatch.setattr(IvfVectors, "fetch", timed_whole)

    def engine(self) -> Turned:
        """Return an engine that has learned what this clock makes of its scans."""
        engine = Turned(self.index, sliced_from_s=0.0, clock=self.clock)
        for time_s in (1e9, None):
            engine.give(1)
            query = SearchQuery(np.zeros(DIMENSION, np.float32), 1)
            engine.submit([EngineRequest(WorkId("warm"), "r", PrimitiveKind.SEARCHING, query)])
            (output,) = engine.step(StepBudget(time_s))
            assert output.kind == "final"
            engine.wait_for_a_step()
        engine.budgets.clear()
        return engine


class Turned(RetrievalEngine):
    """Make a step for each turn that somebody gives, and note what it was allowed."""

    def __init__(self, *args: Any, **parts: Any) -> None:
        super().__init__(*args, **parts)
        self._turns = threading.Semaphore(0)
        self._entered = threading.Semaphore(0)
        self.budgets: list[float | None] = []

    @property
    def profile(self) -> EngineProfile:
        profile = super().profile
        return replace(profile, capabilities=profile.capabilities | {Capability.ENDS_IN_TIME})

    def give(self, turns: int) -> None:
        self._turns.release(turns)

    def wait_for_a_step(self) -> None:
        assert self._entered.acquire(timeout=PATIENCE_S), "no step began"

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        self._entered.release()
        assert self._turns.acquire(timeout=PATIENCE_S), "nobody gave a turn"
        self.budgets.append(budget.time_s)
        return super().step(budget)


def search(rig: Rig, query: SearchQuery) -> LeafCall:
    """Submit a search as a request of its own."""
    rid = rig.driver.new_request()
    call = LeafCall(NodeKey(rid, "leaf"), query)
    build, kind = call.request, PrimitiveKind.SEARCHING
    call.request = lambda node: replace(build(node), kind=kind)  # type: ignore[method-assign]
    rig.driver.submit(LeafArrived(rid, NodeSpec("leaf", rig.e, kind), rig.driver.now()), call)
    return call


def make_index() -> DocumentIndex:
    random = np.random.default_rng(7)
    vectors = random.normal(size=(2000, DIMENSION)).astype(np.float32)
    spec = IndexSpec(DIMENSION, kind=IndexKind.IVF, num_clusters=CLUSTERS, nprobe=CLUSTERS)
    index = DocumentIndex(replace(spec, train_size=2000))
    index.add([Document(f"d{n}", "") for n in range(len(vectors))], vectors)
    assert index.is_trained
    return index


def test_a_short_search_passes_a_long_one_at_a_border_and_both_find_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scanned = Scanned(monkeypatch)
    index, engine = scanned.index, scanned.engine()
    vectors = np.random.default_rng(8).normal(size=(2, DIMENSION)).astype(np.float32)
    long, short = SearchQuery(vectors[0], 5, nprobe=CLUSTERS), SearchQuery(vectors[1], 5, nprobe=1)
    with Rig(engine, **OPTIONS) as rig:
        other = rig.leaf(engine="b")  # so that the long search is not alone
        assert other.may_run.wait(PATIENCE_S)
        first = search(rig, long)
        engine.wait_for_a_step()
        engine.give(1)
        engine.wait_for_a_step()  # the long search has not ended in one step
        second = search(rig, short)
        rig.settle()
        while not second.over.is_set():
            engine.give(1)
            engine.wait_for_a_step()
            rig.settle()
        assert not first.over.is_set()
        assert set(engine.budgets) == {0.01}
        engine.give(1000)
        for call, query in ((first, long), (second, short)):
            (hits,) = index.search(query.vector[None], [5], None, query.nprobe)
            assert call.value() == tuple(hits)
        rig.end_call(other)

"""Search one large index: by codes, by a product with the clusters, together, in steps.

Where callers are named, what is timed goes from a caller's call to his documents; else from handing
searches to ``RetrievalEngine`` to having the documents of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.ablation import switches
from bench.ablation.company import beside
from bench.ablation.measured import LATENCY, STEP_TIMEOUT_S, Ablation, Arm, Gave, ablate, compared
from bench.ablation.switches import Switch
from bench.arms import bench_accelerator
from bench.paired import in_ms
from bench.search_arms import in_turn
from bench.vectors import IndexSize, Vectors, build_index, held_by, make_mixture
from rag_accel.accelerator import Accelerator, Work
from rag_accel.engine_api import EngineRequest, PrimitiveKind, SearchQuery, StepBudget, WorkId
from rag_accel.engines.retrieval import DocumentIndex, RetrievalEngine
from rag_accel.engines.retrieval.engine import SLICED_FROM_S
from rag_accel.system.processor import usable_cores
from rag_accel_demo.load import run_load

K = 10
RECALL = 0.99
RATE = "searches_per_s"
QUERY_SEED = 1 << 41
#: A value of ``sliced_from_s`` that its description calls sensible.
SENSIBLE_S = 0.008
#: Searches over all clusters that run beside others.
HEAVY = 24


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        index: what is searched; its ``nprobe`` is one of those measured.
        turns: by number of searches handed over together.
        caller_turns: runs of each arm that callers load.
        searches: of such a run.
        recall_queries: queries that find the least ``nprobe``.
        warm_up: runs of each arm before those that count.
    """

    index: IndexSize
    turns: Mapping[int, int] = field(default_factory=lambda: {1: 61, 16: 15, 64: 7})
    caller_turns: int = 3
    searches: int = 192
    recall_queries: int = 256
    warm_up: int = 12


def measure(sizes: Sizes, cache: Path) -> list[Ablation]:
    """Measure every mechanism of retrieval."""
    index = build_index(sizes.index, cache)
    least = _least_nprobe(index, sizes)
    return [*_handed_over(index, sizes, least), *_called(index, sizes, least)]


def _queries(sizes: Sizes, count: int, number: int) -> Vectors:
    return make_mixture(sizes.index.dimension).draw(count, QUERY_SEED + 1000 * count + number)


def _least_nprobe(index: DocumentIndex, sizes: Sizes) -> int:
    """Return the least number of clusters at which recall is high enough, by powers of 1.25."""
    queries, clusters = _queries(sizes, sizes.recall_queries, 0), sizes.index.clusters
    true = _ids(index, queries, clusters)
    nprobe = 1
    while nprobe < clusters:
        found = _ids(index, queries, nprobe)
        same = [len(one & other) / K for one, other in zip(found, true, strict=True)]
        if np.mean(same) >= RECALL:
            break
        nprobe += max(1, nprobe // 4)
    return min(nprobe, clusters)


def _ids(index: DocumentIndex, queries: Vectors, nprobe: int) -> list[set[str]]:
    return [{hit.document.id for hit in one} for one in index.search(queries, K, None, nprobe)]


# Handed over to the engine ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Lacking:
    """How an engine, or its codes, lack a mechanism, and where that could matter."""

    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    switch: Switch = nullcontext
    made_under: Switch = nullcontext
    is_one_by_one: bool = False
    least_count: int = 1
    is_least_only: bool = False


LACKING: Mapping[str, _Lacking] = {
    "codes": _Lacking({"max_code_bytes": 0}),
    "clusters_product": _Lacking(
        switch=switches.clusters_one_by_one, least_count=16, is_least_only=True
    ),
    "candidates_in_place": _Lacking(
        switch=switches.candidates_by_label, least_count=16, is_least_only=True
    ),
    "whole_cache_lines": _Lacking(made_under=switches.split_cache_lines, least_count=16),
    "searching_together": _Lacking(is_one_by_one=True, least_count=16, is_least_only=True),
}


def _handed_over(index: DocumentIndex, sizes: Sizes, least: int) -> list[Ablation]:
    regimes = {
        "least nprobe": least,
        "4x nprobe": min(4 * least, sizes.index.clusters),
        "256 nprobe": sizes.index.nprobe,
    }
    found: list[Ablation] = []
    with ExitStack() as stack:
        on = _searcher(stack, index, _Lacking())
        off = {name: _searcher(stack, index, one) for name, one in LACKING.items()}
        for regime, nprobe in regimes.items():
            for count, turns in sizes.turns.items():
                names = [name for name in LACKING if _matters(name, count, regime)]
                arms = {name: off[name] for name in names}
                asked = [_queries(sizes, count, number) for number in range(turns)]
                for number in range(sizes.warm_up):
                    queries = _queries(sizes, count, turns + number)
                    for arm in (on, *arms.values()):
                        arm(queries, nprobe)
                found += _in_turn(f"b{count} {regime}", on, arms, asked, nprobe)
    return found


def _matters(name: str, count: int, regime: str) -> bool:
    one = LACKING[name]
    return count >= one.least_count and not (one.is_least_only and regime != "least nprobe")


Search = Callable[[Vectors, int], Any]


def _searcher(stack: ExitStack, index: DocumentIndex, lacking: _Lacking) -> Search:
    """Return what searches for all queries by an engine of its own, which has codes if it may."""
    engine = stack.enter_context(closing(RetrievalEngine(index, **lacking.options)))
    with lacking.made_under():
        engine.make_codes()
    budget = StepBudget(threads=min(2, usable_cores()))

    def search(queries: Vectors, nprobe: int) -> list[Any]:
        step = 1 if lacking.is_one_by_one else len(queries)
        return [
            hits
            for first in range(0, len(queries), step)
            for hits in _stepped(engine, queries[first : first + step], nprobe, budget)
        ]

    def switched(queries: Vectors, nprobe: int) -> list[Any]:
        with lacking.switch():
            return search(queries, nprobe)

    return search if lacking.switch is nullcontext else switched


def _stepped(
    engine: RetrievalEngine, queries: Vectors, nprobe: int, budget: StepBudget
) -> list[Any]:
    engine.submit(
        [
            EngineRequest(
                *(WorkId(str(number)), "bench", PrimitiveKind.SEARCHING),
                SearchQuery(vector, K, None, nprobe),
            )
            for number, vector in enumerate(queries)
        ]
    )
    found = {output.id: output.value for output in engine.step(budget)}
    return [found[WorkId(str(number))] for number in range(len(queries))]


def _in_turn(
    regime: str, on: Search, off: Mapping[str, Search], asked: Sequence[Vectors], nprobe: int
) -> list[Ablation]:
    """Let all arms search all queries; none meets in the cache what another has just read."""
    times, found = in_turn({"on": on, **off}, asked, nprobe)
    gave = {
        name: [Gave(in_ms(s), answers) for s, answers in zip(times[name], found[name], strict=True)]
        for name in times
    }
    return [compared(name, regime, LATENCY, gave[name], gave["on"]) for name in off]


# Called by several -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Caller:
    """A caller that searches as an accelerated store does: by its engine of an accelerator."""

    accelerator: Accelerator
    engine: Any
    queries: Vectors
    nprobe: int

    def invoke(self, number: int) -> Any:
        """Return the documents of one query."""
        return self._search(number, self.nprobe)

    def all_clusters(self, clusters: int) -> list[Any]:
        """Return the documents of some queries, each over all clusters, all asked for at once."""
        queries = [self._work(number, clusters) for number in range(HEAVY)]
        return self.accelerator.leaves.compute_all(self.accelerator.anonymous(), queries)

    def _search(self, number: int, nprobe: int) -> Any:
        work = self._work(number, nprobe)
        return self.accelerator.leaves.compute(self.accelerator.anonymous(), work)

    def _work(self, number: int, nprobe: int) -> Work:
        query = SearchQuery(self.queries[number % len(self.queries)], K, None, nprobe)
        return Work(self.engine, PrimitiveKind.SEARCHING, query)


def _called(index: DocumentIndex, sizes: Sizes, least: int) -> list[Ablation]:
    queries, turns = _queries(sizes, sizes.searches, 1), sizes.caller_turns
    found: list[Ablation] = []
    with ExitStack() as stack:
        caller = partial(_caller, stack, index, queries, least)
        on, alone, sliced = caller(), caller(max_batch=1), caller(SENSIBLE_S)
        for callers in (16, 64):
            off = {"batching": _load(alone, callers)}
            found += ablate(f"{callers} threads searching", RATE, _load(on, callers), off, turns)
        clusters = held_by(index).num_clusters

        def light(arm: _Caller) -> Arm:
            return beside(lambda: arm.all_clusters(clusters), arm.invoke)

        regime, off = "searches beside large ones", {"stepped_search": light(on)}
        found += ablate(regime, LATENCY, light(sliced), off, turns)
    return found


def _caller(
    stack: ExitStack,
    index: DocumentIndex,
    queries: Vectors,
    nprobe: int,
    sliced_from_s: float = SLICED_FROM_S,
    **options: Any,
) -> _Caller:
    accelerator = stack.enter_context(bench_accelerator(step_timeout_s=STEP_TIMEOUT_S, **options))
    engine = RetrievalEngine(index, sliced_from_s=sliced_from_s)
    engine.make_codes()
    name = accelerator.own(index, "retrieval", lambda: engine)
    return _Caller(accelerator, name, queries, nprobe)


def _load(caller: _Caller, callers: int) -> Arm:
    numbers: Any = range(len(caller.queries))

    def run(turn: int) -> Gave:
        load = run_load(caller, numbers, callers, "threads")
        return Gave(load.throughput_rps, load.answers)

    return run

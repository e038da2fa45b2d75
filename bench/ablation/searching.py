"""Search one large index: by codes, by a product with the clusters, together.

Where callers are named, what is timed goes from a caller's call to his documents; else from handing
searches to ``RetrievalEngine`` to having the documents of all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.ablation import switches
from bench.ablation.measured import LATENCY, STEP_TIMEOUT_S, Ablation, Arm, Gave, ablate, compared
from bench.ablation.switches import Switch
from bench.arms import bench_accelerator
from bench.baselines.faiss_coded import K_FACTOR, FaissCoded
from bench.paired import in_ms
from bench.vectors import IndexSize, Vectors, build_index, make_mixture
from rag_accel.accelerator import Accelerator, Work
from rag_accel.engine_api import EngineRequest, PrimitiveKind, SearchQuery, StepBudget, WorkId
from rag_accel.engines.retrieval import DocumentIndex, RetrievalEngine
from rag_accel.engines.retrieval.vectors.nearest import nearest
from rag_accel.system.processor import usable_cores
from rag_accel_demo.load import run_load

K = 10
RECALL = 0.99
RATE = "searches_per_s"
QUERY_SEED = 1 << 41


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
    turns: Mapping[int, int] = field(default_factory=lambda: {16: 15, 64: 7})
    caller_turns: int = 3
    searches: int = 192
    recall_queries: int = 256
    warm_up: int = 12


def measure(sizes: Sizes, cache: Path) -> list[Ablation]:
    """Measure every mechanism of retrieval."""
    index = build_index(sizes.index, cache)
    least = _least_nprobe(index, sizes)
    return [
        *_handed_over(index, sizes, least),
        *_by_codes(index, sizes),
        *_called(index, sizes, least),
    ]


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
    """How an engine lacks a mechanism."""

    switch: Switch = nullcontext
    is_one_by_one: bool = False


LACKING: Mapping[str, _Lacking] = {
    "clusters_product": _Lacking(switch=switches.clusters_one_by_one),
    "searching_together": _Lacking(is_one_by_one=True),
}


def _handed_over(index: DocumentIndex, sizes: Sizes, least: int) -> list[Ablation]:
    found: list[Ablation] = []
    with ExitStack() as stack:
        on = _searcher(stack, index, _Lacking())
        off = {name: _searcher(stack, index, one) for name, one in LACKING.items()}
        for count in sizes.turns:
            times, answers = _in_turn({"on": on, **off}, _asked(sizes, count), least, sizes.warm_up)
            gave = {name: _gave(times[name], answers[name]) for name in times}
            regime = f"b{count} least nprobe"
            found += [compared(name, regime, LATENCY, gave[name], gave["on"]) for name in off]
    return found


def _asked(sizes: Sizes, count: int) -> list[Vectors]:
    return [_queries(sizes, count, number) for number in range(sizes.turns[count])]


def _gave(times: Sequence[float], answers: Sequence[Any]) -> list[Gave]:
    return [Gave(in_ms(taken_s), found) for taken_s, found in zip(times, answers, strict=True)]


def _by_codes(index: DocumentIndex, sizes: Sizes) -> list[Ablation]:
    """Compare searches by our codes with FAISS's own over the same codes, clusters and candidates.

    What is timed goes from queries to labels and scores, which is what FAISS's call returns.
    """
    faiss_coded = FaissCoded(index)
    state = index.snapshot()
    assert state.clusters is not None, "the index is trained"
    coded = DocumentIndex.from_snapshot(
        replace(
            state,
            spec=replace(state.spec, codes="sq8", refine=int(K_FACTOR)),
            clusters=replace(state.clusters, ranges=faiss_coded.ranges),
        )
    )

    def ours(queries: Vectors, nprobe: int) -> Any:
        with coded.reading():
            view = coded.view()
            scope = view.scope(None, nprobe)
            hits = nearest(view.vectors, queries, [K] * len(queries), scope)
        return [one.labels for one in hits]

    def faiss_own(queries: Vectors, nprobe: int) -> Any:
        return list(faiss_coded.search(queries, K, nprobe)[1])

    found: list[Ablation] = []
    for count in sizes.turns:
        arms, asked = {"on": ours, "off": faiss_own}, _asked(sizes, count)
        times, answers = _in_turn(arms, asked, sizes.index.nprobe, sizes.warm_up)
        gave = {name: _gave(times[name], answers[name]) for name in times}
        regime = f"b{count}"
        found.append(compared("sq8_vs_faiss", regime, LATENCY, gave["off"], gave["on"], _alike))
    return found


def _alike(ours: Any, other: Any) -> bool:
    """Tell whether labels are the same but for one near the cut: FAISS scores in float32."""
    return len(np.intersect1d(ours, other)) >= K - 1


Search = Callable[[Vectors, int], Any]


def _searcher(stack: ExitStack, index: DocumentIndex, lacking: _Lacking) -> Search:
    """Return what searches for all queries by an engine of its own."""
    engine = stack.enter_context(closing(RetrievalEngine(index)))
    budget = StepBudget(threads=min(2, usable_cores()))

    def search(queries: Vectors, nprobe: int) -> list[Any]:
        step = 1 if lacking.is_one_by_one else len(queries)
        with lacking.switch():
            return [
                hits
                for first in range(0, len(queries), step)
                for hits in _stepped(engine, queries[first : first + step], nprobe, budget)
            ]

    return search


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
    arms: Mapping[str, Search], asked: Sequence[Vectors], nprobe: int, warm_up: int
) -> tuple[dict[str, list[float]], dict[str, list[Any]]]:
    """Let every arm search each of ``asked`` once; return seconds by turn, and what was found.

    In each turn another arm goes first, and no two arms search the same queries: the second would
    find in the cache what the first has read. Over all turns each searches all of them. What was
    found stands in the order of ``asked``. The first ``warm_up`` searches of each do not count.
    """
    names, count = list(arms), len(asked)
    times: dict[str, list[float]] = {name: [] for name in names}
    found: dict[str, list[Any]] = {name: [None] * count for name in names}
    for number in range(warm_up):
        for name in names:
            arms[name](asked[number % count], nprobe)
    for turn in range(count):
        for place in range(len(names)):
            number = (turn + place) % len(names)
            name, which = names[number], (turn + number * count // len(names)) % count
            started = time.perf_counter()
            found[name][which] = arms[name](asked[which], nprobe)
            times[name].append(time.perf_counter() - started)
    return times, found


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

    def _search(self, number: int, nprobe: int) -> Any:
        query = SearchQuery(self.queries[number % len(self.queries)], K, None, nprobe)
        work = Work(self.engine, PrimitiveKind.SEARCHING, query)
        return self.accelerator.leaves.compute(self.accelerator.anonymous(), work)


def _called(index: DocumentIndex, sizes: Sizes, least: int) -> list[Ablation]:
    queries = _queries(sizes, sizes.searches, 1)
    found: list[Ablation] = []
    with ExitStack() as stack:
        on = _caller(stack, index, queries, least)
        alone = _caller(stack, index, queries, least, max_batch=1)
        for callers in (16, 64):
            regime, off = f"{callers} threads searching", {"batching": _load(alone, callers)}
            found += ablate(regime, RATE, _load(on, callers), off, sizes.caller_turns)
    return found


def _caller(
    stack: ExitStack, index: DocumentIndex, queries: Vectors, nprobe: int, **options: Any
) -> _Caller:
    accelerator = stack.enter_context(bench_accelerator(step_timeout_s=STEP_TIMEOUT_S, **options))
    engine = accelerator.own(index, "retrieval", lambda: RetrievalEngine(index))
    return _Caller(accelerator, engine, queries, nprobe)


def _load(caller: _Caller, callers: int) -> Arm:
    numbers: Any = range(len(caller.queries))

    def run(turn: int) -> Gave:
        load = run_load(caller, numbers, callers, "threads")
        return Gave(load.throughput_rps, load.answers)

    return run

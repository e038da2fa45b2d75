"""Measure searches of clusters that are read in pieces: what pieces cost, and whom they help.

No model takes part. A synthetic index of clusters is searched by vector, with so many clusters a
search that it takes 10 ms or more. All arms must find the same documents in the same order with
the same scores.

- Steps: searches are handed over together to the engine of a ``DocumentIndex``, which reads each
  of them to its end in one call, or in about eight steps; row ``steps`` says how many these were.
  Both run on the number of threads at which they are fastest.
- Partitioning: threads search long, each in an accelerator's engine, and when their searches are
  under way another one makes a short search. The opponent ends in each step whatever it holds.
- Early stop and orders: MiniLM's vectors of passages and questions; ``stop=0.98`` learns from half
  of the questions and is measured on the others. The orders are those of a request's second search.

Ratios:
    steps8_b1: against the same engine in one call: seconds of one search in eight steps / in one
        call, both on their best number of threads (lower is better); median over turns.
    steps8_b32: against the same engine in one call: the same of 32 searches together.
    partitioning: against the same engine in one call a step: ms of a short search beside long ones
        in one call / in steps; median over turns.
    stop_scanned: against the same searches in full: vectors that are read with ``stop=0.98`` /
        without (lower is better).
    stop_equal: against the same searches in full: the share with the same set of five.
    order_mixed: against the whole scan: the share of vectors that is read until the five nearest
        are found, where the four nearest clusters come first, then those of the request's last
        results (lower is better).
    order_paper: against the whole scan: the same where the clusters of the last results come first,
        then those that were searched for them (HedraRAG section 4.3).
    order_centroid: against the whole scan: the same in the order of the centroids.
    equal: against a search alone: the share of searches with equal documents, order and scores.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bench.answers import too_many
from bench.arms import bench_accelerator, thread_candidates
from bench.garbage import little_garbage
from bench.measure import Pairs, median, ratios, rotate
from bench.paired import in_ms
from bench.results import Row, SuiteResult, median_row, row_of, sizes_of
from bench.search_stop import Sizes as MaterialSizes
from bench.search_stop import make_material, stop_and_order_rows
from bench.vectors import IndexSize, Vectors, build_index, make_mixture
from rag_accel.accelerator import Work
from rag_accel.engine_api import (
    Engine,
    EngineOutput,
    EngineRequest,
    PrimitiveKind,
    SearchQuery,
    StepBudget,
    WorkId,
)
from rag_accel.engines.retrieval import DocumentIndex, RetrievalEngine, stepped_searches
from rag_accel.system.files import user_cache
from rag_accel.system.processor import usable_cores

K = 10
STEPS = 8
SEED = 1 << 42
WHOLE, STEPPED = "one call", "in steps"
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        index: what is searched; a long search visits its ``nprobe`` clusters.
        turns: by number of searches handed over together: 1 and 32.
        short_nprobe: clusters of a short search.
        long: threads that search long.
        short_turns: short searches of each arm.
        material: of the early stop and the orders.
    """

    index: IndexSize
    turns: dict[int, int] = field(default_factory=lambda: {1: 15, 32: 5})
    short_nprobe: int = 16
    long: int = 24
    short_turns: int = 7
    material: MaterialSizes = field(default_factory=MaterialSizes)


QUICK = Sizes(IndexSize(1_000_000, 1024, 512), {1: 9, 32: 5}, short_turns=3)
FULL = Sizes(IndexSize(1_000_000, 1024, 512))

Found = list[tuple[str, float]]


class Queries:
    """Fresh queries of one mixture."""

    def __init__(self, dimension: int) -> None:
        self._mixture, self._seed = make_mixture(dimension), SEED

    def draw(self, count: int) -> Vectors:
        """Return queries that were never drawn before."""
        self._seed += 1
        return self._mixture.draw(count, self._seed)


def run(quick: bool, sizes: Sizes | None = None, cache: Path | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    index = build_index(chosen.index, cache or user_cache())
    queries = Queries(chosen.index.dimension)
    rows, found = list[Row](), dict[str, float]()
    with little_garbage():
        for count, turns in chosen.turns.items():
            ratio = f"steps8_b{count}"
            make = partial(RetrievalEngine, index)
            more, found[ratio] = _steps(make, ratio, queries, count, turns)
            rows += more
        more, found["partitioning"] = _partitioning(index, queries, chosen)
        rows += more
    material = make_material(chosen.material, cache or user_cache())
    learned = stop_and_order_rows(material, chosen.material)
    rows += learned
    found |= {row.metric: row.median for row in learned}
    checks = [row for row in rows if row.metric == "different_documents"]
    searches = sum(row.n for row in checks)
    found["equal"] = 1.0 - sum(row.median for row in checks) / searches
    wrong = too_many(rows, "different_documents")
    return SuiteResult("retrieval", tuple(rows), found, sizes=sizes_of(chosen), wrong=wrong)


def _pairs(hits: Sequence[Any]) -> Found:
    return [(hit.document.id, hit.score) for hit in hits]


def _different(system: str, workload: str, ours: Sequence[Any], alone: Sequence[Any]) -> Row:
    wrong = sum(one != other for one, other in zip(ours, alone, strict=True))
    return Row(system, workload, "different_documents", wrong, None, len(ours))


# Steps -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Timed:
    """Searches handed over together: seconds, steps, and what each found."""

    seconds: float
    steps: int
    found: list[Found]


def _steps(
    make: Callable[[], Engine], workload: str, queries: Queries, count: int, turns: int
) -> tuple[list[Row], float]:
    """Return seconds in steps / in one call, each on its best number of threads."""
    workload = f"{workload}: searches together: {count}"
    drawn = [queries.draw(count) for _ in range(turns + 1)]
    cut_all = patch.object(stepped_searches, "LONGER_DIGITS", -inf)  # as longer than usual
    with closing(make()) as engine, cut_all:
        threads = thread_candidates(usable_cores())
        seconds = {
            number: _handed_over(engine, drawn[-1], StepBudget(threads=number)).seconds
            for number in threads
            for _ in range(2)
        }
        arms: dict[str, Callable[[int], _Timed]] = {}
        for number in threads:
            for name, time_s in ((WHOLE, None), (STEPPED, seconds[number] / STEPS)):
                budget = StepBudget(time_s, number)
                arms[f"{name} {number}"] = lambda turn, b=budget: _handed_over(
                    engine, drawn[turn], b
                )
        timed = rotate(arms, turns)
    best: dict[str, list[_Timed]] = {}
    for name in (WHOLE, STEPPED):
        alike = [timed[f"{name} {number}"] for number in threads]
        best[name] = min(alike, key=lambda runs: median([run.seconds for run in runs]))
    alone = [found for run in timed[f"{WHOLE} 1"] for found in run.found]
    rows = [
        row_of(name, workload, "latency_ms", [in_ms(run.seconds) for run in runs])
        for name, runs in best.items()
    ]
    rows.append(median_row(STEPPED, workload, "steps", [run.steps for run in best[STEPPED]]))
    ours = [found for run in best[STEPPED] for found in run.found]
    rows.append(_different(STEPPED, workload, ours, alone))
    pairs = Pairs(*(tuple(run.seconds for run in best[name]) for name in (WHOLE, STEPPED)))
    return rows, median(ratios(pairs))


def _handed_over(engine: Engine, vectors: Vectors, budget: StepBudget) -> _Timed:
    kind = PrimitiveKind.SEARCHING
    work = [
        EngineRequest(WorkId(str(at)), "bench", kind, SearchQuery(vector, K))
        for at, vector in enumerate(vectors)
    ]
    found: dict[WorkId, Found] = {}
    started, steps = time.perf_counter(), 0
    engine.submit(work)
    while len(found) < len(work):
        steps += 1
        for output in engine.step(budget):
            found[output.id] = _pairs(_value(output))
    seconds = time.perf_counter() - started
    return _Timed(seconds, steps, [found[request.id] for request in work])


def _value(output: EngineOutput) -> Any:
    if output.error is not None:
        raise output.error
    return output.value


# Partitioning ----------------------------------------------------------------------------------


class _WholeSteps(RetrievalEngine):
    """The engine without a limit of time: each step ends all it holds."""

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        return super().step(StepBudget(threads=budget.threads))


def _partitioning(index: DocumentIndex, queries: Queries, sizes: Sizes) -> tuple[list[Row], float]:
    """Return ms of a short search beside long ones in one call / in steps."""
    workload = f"partitioning: a search beside {sizes.long} long ones"
    rows, taken = list[Row](), dict[str, list[float]]()
    with bench_accelerator() as one, bench_accelerator() as other:
        arms = {
            WHOLE: (one, one.own(index, "retrieval", lambda: _WholeSteps(index))),
            STEPPED: (other, other.own(index, "retrieval", lambda: RetrievalEngine(index))),
        }

        def short(name: str, turn: int) -> tuple[float, list[Found], Vectors]:
            accelerator, engine = arms[name]

            def search(vector: Any, nprobe: int | None) -> Found:
                query = SearchQuery(vector, K, None, nprobe)
                work = Work(engine, PrimitiveKind.SEARCHING, query)
                return _pairs(accelerator.leaves.compute(accelerator.anonymous(), work))

            return _beside(search, queries.draw(sizes.long + 1), sizes.short_nprobe)

        for name in arms:  # the first searches teach the engines what reading takes
            short(name, 0)
        runs = rotate({name: partial(short, name) for name in arms}, sizes.short_turns)
    for name, found in runs.items():
        taken[name] = [seconds for seconds, _, _ in found]
        rows.append(row_of(name, workload, "latency_ms", list(map(in_ms, taken[name]))))
        ours = [hits for _, answers, _ in found for hits in answers]
        alone = [
            _pairs(index.search(vector[None], K, None, nprobe)[0])
            for _, _, vectors in found
            for vector, nprobe in zip(vectors, _nprobes(vectors, sizes.short_nprobe), strict=True)
        ]
        rows.append(_different(name, workload, ours, alone))
    return rows, median(ratios(Pairs(tuple(taken[STEPPED]), tuple(taken[WHOLE]))))


def _nprobes(vectors: Vectors, short_nprobe: int) -> Iterator[int | None]:
    """Yield nprobe of each search: the last one is short."""
    for place in range(len(vectors)):
        yield short_nprobe if place == len(vectors) - 1 else None


def _beside(
    search: Callable[[Any, int | None], Found], vectors: Vectors, short_nprobe: int
) -> tuple[float, list[Found], Vectors]:
    """Return seconds of a short search that comes when the first of the long ones has ended."""
    ended = threading.Event()

    def long(vector: Any) -> Found:
        found = search(vector, None)
        ended.set()
        return found

    with ThreadPoolExecutor(len(vectors)) as pool:
        others = [pool.submit(long, vector) for vector in vectors[:-1]]
        ended.wait(PATIENCE_S)
        started = time.perf_counter()
        found = search(vectors[-1], short_nprobe)
        seconds = time.perf_counter() - started
        return seconds, [*(other.result() for other in others), found], vectors

"""Measure exact searches by codes, shared scans and searches in steps, against stock FAISS.

The index is a synthetic mixture (``bench/vectors.py``): 4,000,000 vectors of 256 numbers in 1024
clusters, 256 of which a search visits; 1,000,000 with ``quick``. So two searches meet in a quarter
of their clusters. Of 4096 clusters they would meet in a sixteenth, and a crowd has less to share:
the rows that name ``4096 clusters`` (of 1,000,000) show that. Finding clusters takes some minutes
and is cached. Both arms search the same memory on the same number of threads, two where there are
as many; stock FAISS shares the clusters of a query among them (``parallel_mode`` 1). Arms take
turns; each turn asks new queries.

A search in steps goes through ``RetrievalEngine``, which also looks up and scores the documents.
A step compares with an eighth of the vectors, so that there are about eight, which the row
``steps`` shows. By itself the engine cuts by time, and not so fine if the search is short. Steps
read the engine's 8-bit lists, as a server's do once it has searched a few times; the rows ``in
steps, vectors`` read the vectors. Crowds go both ways that the engine has besides FAISS: by 8-bit
lists, one by one, and by a shared scan; the search for the nearest clusters is included.

Ids are compared on small indexes with the exact search of each query alone, ids and scores; half
of the queries by inner product, half by L2. On the large index the ids are compared with FAISS's.

Ratios:
    steps8_over_oneshot_b1: time of one search in eight steps / stock FAISS in one call.
    steps8_over_oneshot_b32: the same for 32 searches together.
    steps8_vectors_b1: the first where steps read the vectors and no codes.
    steps8_vectors_b32: the same for 32 searches together.
    coded_b1: time of stock FAISS / time of an exact search by 8-bit lists, one query.
    coded_b16: the same for 16 queries.
    coded_b64: the same for 64 queries.
    batched_kernel_b16: time of stock FAISS / time of a shared scan, 16 queries.
    batched_kernel_b64: the same for 64 queries.
    ids_equal_clustered: queries with equal ids and scores, both ways / queries compared, vectors in
        clusters.
    ids_equal_uniform: the same for uniform vectors.
    ids_equal_duplicates: the same where each vector is there about twenty times.
    ids_equal_adversarial: the same for lengths from 0 to 1e10 in one cluster.
    ids_equal_faiss: queries of the large index whose ids are FAISS's / queries compared. FAISS
        sums in float32, ours decide in float64: ids differ where scores are as close as float32
        rounds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from bench.by_codes import CODED, SHARED, CrowdSearch, searches_of, searching
from bench.measure import Pairs, alternate, median, ratios, timed
from bench.results import Row, SuiteResult, row_of
from bench.vectors import KINDS, IndexSize, Vectors, build_index, make_mixture, stock_index
from langchain_rag_accel.demo.material import default_cache
from rag_accel.engine_api import (
    Document,
    EngineRequest,
    PrimitiveKind,
    SearchQuery,
    StepBudget,
    WorkId,
)
from rag_accel.engines.retrieval import (
    DocumentIndex,
    IndexKind,
    IndexSpec,
    Metric,
    RetrievalEngine,
)
from rag_accel.engines.retrieval.search_ways import MAX_CODE_BYTES
from rag_accel.engines.retrieval.stepped_cost import ScanCost
from rag_accel.engines.retrieval.vectors import thread_count
from rag_accel.errors import EngineError
from rag_accel.machine import usable_cores

_logger = logging.getLogger("bench.stepping")

K = 10
STEPS = 8
STEPPED, CROWDS = (1, 32), (1, 4, 8, 16, 32, 64)
CLAIMED = {"coded": (1, 16, 64), "batched_kernel": (16, 64)}
SMALL_DIMENSION, SMALL_CLUSTERS, SMALL_NPROBE, CROWD = 48, 64, 8, 50
QUERY_SEED = 1 << 40


@dataclass(frozen=True, slots=True)
class Sizes:
    """Say how much is measured.

    Args:
        index: the large index.
        repeats: pairs of each number of searches.
        small_vectors: vectors of each small index.
        small_queries: queries of each kind of vectors, both metrics together.
        sparse: an index whose searches meet in few clusters; only crowds are measured.
    """

    index: IndexSize
    repeats: int
    small_vectors: int
    small_queries: int
    sparse: IndexSize | None = None


_SPARSE = IndexSize(1_000_000, 4096, 256)
QUICK = Sizes(IndexSize(1_000_000, 1024, 256), 9, 10_000, 2_500, _SPARSE)
FULL = Sizes(IndexSize(4_000_000, 1024, 256), 25, 20_000, 5_000, _SPARSE)


def run(quick: bool, sizes: Sizes | None = None, cache: Path | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    threads = min(2, usable_cores())
    folder = cache or default_cache()
    bench = _bench(chosen, chosen.index, folder, threads)
    rows: list[Row] = []
    found: dict[str, float] = {}
    with thread_count(threads):
        for count in STEPPED:
            found[f"steps8_over_oneshot_b{count}"] = bench.stepped(count, rows)
            found[f"steps8_vectors_b{count}"] = bench.stepped(count, rows, has_codes=False)
        speeds, equal = bench.crowds(rows)
        del bench  # its memory is needed
        if chosen.sparse is not None:
            _bench(chosen, chosen.sparse, folder, threads).crowds(rows, chosen.sparse)
    for name, system in (("coded", CODED), ("batched_kernel", SHARED)):
        found |= {f"{name}_b{count}": speeds[system, count] for count in CLAIMED[name]}
    for kind, draw in KINDS.items():
        found[f"ids_equal_{kind}"] = compare_ids(kind, draw, chosen, rows)
    found["ids_equal_faiss"] = equal
    return SuiteResult("stepping", tuple(rows), found)


def _bench(sizes: Sizes, size: IndexSize, cache: Path, threads: int) -> _Bench:
    index = build_index(size, cache)
    return _Bench(index, stock_index(index, size.nprobe), sizes, threads)


class _EqualPieces(ScanCost):
    """Make every piece equally large: a loaded machine must not cut in another way."""

    def __init__(self, vectors: float) -> None:
        super().__init__(base_s=0.0, per_vector_s=1.0)
        self._vectors = vectors

    def vectors_in(self, seconds: float) -> float:
        """Return the size of a piece."""
        return self._vectors

    def observe(self, vectors: int, scan_s: float, base_s: float) -> None:
        """Learn nothing."""


@dataclass(frozen=True, slots=True)
class _Bench:
    index: DocumentIndex
    stock: Any
    sizes: Sizes
    threads: int

    def queries(self, count: int, turn: int) -> Vectors:
        return make_mixture(self.sizes.index.dimension).draw(
            count, QUERY_SEED + 1000 * count + turn
        )

    def stepped(self, count: int, rows: list[Row], has_codes: bool = True) -> float:
        """Return stepped / one call."""
        system = "in steps" if has_codes else "in steps, vectors"
        asked = [self.queries(count, turn) for turn in range(self.sizes.repeats)]
        pieces = _EqualPieces(count * self.index.num_compared(None, None) / STEPS)
        budget = StepBudget(time_s=0.0, threads=self.threads)  # one piece for each step
        taken: list[float] = []
        with mock.patch.object(RetrievalEngine, "_piece_cost", return_value=pieces):
            most = MAX_CODE_BYTES if has_codes else 0
            engine = RetrievalEngine(
                self.index, sliced_from_s=0.0, max_code_bytes=most, max_threads=self.threads
            )
            if engine.make_codes() != has_codes:
                raise EngineError("no codes", where="8-bit lists", hint="see the log")
            pairs = alternate(
                timed(lambda turn: self.stock.search(asked[turn], K)),
                timed(lambda turn: taken.append(steps_of(engine, asked[turn], budget))),
                self.sizes.repeats,
            )
        workload = f"{count} searches"
        engine.close()
        rows.append(row_of(system, workload, "steps", taken))
        return 1 / _speed(pairs, workload, system, rows)

    def crowds(
        self, rows: list[Row], other: IndexSize | None = None
    ) -> tuple[dict[tuple[str, int], float], float]:
        """Return the speed of each way and size of crowd, and the share of queries like FAISS's."""
        same: list[bool] = []
        speeds: dict[tuple[str, int], float] = {}
        with searching(self.index, self.threads) as ways:
            for system, search in ways.items():
                for count in CROWDS:
                    if system == CODED or count > 1:
                        workload = f"{count} queries"
                        if other is not None:
                            workload += f", {other.clusters} clusters"
                        pairs = self._crowd(search, count, same)
                        speeds[system, count] = _speed(pairs, workload, system, rows)
        where = "large index" if other is None else f"{other.clusters} clusters"
        return speeds, _share(f"clustered, {where}", same, rows)

    def _crowd(self, search: CrowdSearch, count: int, same: list[bool]) -> Pairs[float]:
        """Return the times of stock FAISS and of ours; note which queries got equal ids."""
        asked = [self.queries(count, turn) for turn in range(self.sizes.repeats)]
        theirs: dict[int, Any] = {}
        ours: dict[int, Any] = {}

        def plain(turn: int) -> None:
            theirs[turn] = self.stock.search(asked[turn], K)[1]

        def other(turn: int) -> None:
            ours[turn] = search(searches_of(asked[turn], K))

        pairs = alternate(timed(plain), timed(other), self.sizes.repeats, warm_up=1)
        same += [
            [hit.document.id for hit in one] == [str(label) for label in labels]
            for turn in ours
            for one, labels in zip(ours[turn], theirs[turn], strict=True)
        ]
        return pairs


def steps_of(engine: RetrievalEngine, queries: Vectors, budget: StepBudget) -> float:
    """Search in steps; return how many it took."""
    engine.submit([request_of(number, query) for number, query in enumerate(queries)])
    steps, left = 0, len(queries)
    while left:
        left -= len(engine.step(budget))
        steps += 1
    return float(steps)


def request_of(number: int, vector: Any, k: int = K) -> EngineRequest:
    """Return the request of a search."""
    query = SearchQuery(vector, k)
    return EngineRequest(WorkId(str(number)), "bench", PrimitiveKind.SEARCHING, query)


def compare_ids(
    kind: str,
    draw: Callable[[np.random.Generator, int, int], Vectors],
    sizes: Sizes,
    rows: list[Row],
) -> float:
    """Return the share of queries that find the same alone and in crowds; half are stored ones."""
    same: list[bool] = []
    for seed, metric in enumerate(Metric):
        random = np.random.default_rng(seed)
        vectors = draw(random, sizes.small_vectors, SMALL_DIMENSION)
        count = sizes.small_queries // 2
        queries = draw(random, count, SMALL_DIMENSION)
        queries[::2] = vectors[random.integers(0, len(vectors), len(queries[::2]))]
        same += _same(metric, vectors, queries)
    return _share(kind, same, rows)


def _same(metric: Metric, vectors: Vectors, queries: Vectors) -> list[bool]:
    clusters = min(SMALL_CLUSTERS, len(vectors))
    spec = IndexSpec(
        SMALL_DIMENSION,
        metric,
        IndexKind.IVF,
        num_clusters=clusters,
        nprobe=SMALL_NPROBE,
        train_size=len(vectors),
    )
    index = DocumentIndex(spec)
    index.add([Document(str(number), "", {}) for number in range(len(vectors))], vectors)
    same: list[bool] = []
    with searching(index, 1) as ways:
        for start in range(0, len(queries), CROWD):
            part = queries[start : start + CROWD]
            alone = [index.search(query[None, :], K)[0] for query in part]
            found = [search(searches_of(part, K)) for search in ways.values()]
            same += [all(one == other[row] for other in found) for row, one in enumerate(alone)]
    return same


def _speed(pairs: Pairs[float], workload: str, system: str, rows: list[Row]) -> float:
    """Return FAISS's time / ours, the median over pairs, and add both times."""
    in_ms = pairs.map(lambda seconds: 1000 * seconds)
    rows += [
        row_of(f"stock FAISS beside {system}", workload, "latency_ms", in_ms.plain),
        row_of(system, workload, "latency_ms", in_ms.other),
    ]
    speed = 1 / median(ratios(pairs))
    rows.append(
        Row(f"stock FAISS / {system}", workload, "latency_ratio", speed, None, len(pairs.plain))
    )
    _logger.info("%s %s: %.2f times stock FAISS", workload, system, speed)
    return speed


def _share(kind: str, same: Sequence[bool], rows: list[Row]) -> float:
    rows.append(Row("by codes", kind, "queries_equal", float(sum(same)), None, len(same)))
    _logger.info("%s: %d of %d queries equal", kind, sum(same), len(same))
    return sum(same) / len(same)

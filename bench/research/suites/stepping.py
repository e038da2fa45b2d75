"""Measure exact searches by 8-bit lists against FAISS's own, and searches in steps.

The strongest opponent is FAISS's ``IndexIVFScalarQuantizer`` (8 bits, by residual) under
``IndexRefineFlat``, with the least ``k_factor`` at which its ids are those of the exact search of
the same lists (``bench/baselines/faiss_coded.py``); beside it stands ``IndexIVFFlat`` in float32.
Ours is the exact search by 8-bit lists with its proof, the same without a proof, and the exact
search of the vectors.

The index is a synthetic mixture (``bench/vectors.py``) of 1,000,000 vectors of 256 numbers, or
4,000,000, in as many clusters as an index of ours makes by itself. A search visits the least number
of clusters at which recall@10 against brute force is at least 0.99 (``least nprobe``), four times
it, and 256. Recall stands beside each.

All arms search the same clusters on the same number of threads, two where there are as many, and
the same queries, each once. They take turns, another one first each time, and none meets in the
cache what another has just read. What is timed goes from queries to labels and scores, which is
what FAISS returns; ``with documents`` adds looking these up. Making codes and finding clusters are
not timed. A ratio is the median over turns.

Searches in steps go through ``RetrievalEngine``, with documents, and visit 256 clusters. A step
compares with an eighth of the vectors. By itself the engine cuts nothing: ``sliced_from_s`` is
infinite until whoever drives it waits for less than a whole search.

Ids are also compared on small indexes with the exact search of each query alone, ids and scores;
half of the queries by inner product, half by L2.

Ratios:
    exact_vs_sq8_refine_b1: against FAISS SQ8 + refine: its time / that of our exact search by 8-bit
        lists; 1 query, least nprobe.
    exact_vs_sq8_refine_b16: against FAISS SQ8 + refine: the same for 16 queries.
    exact_vs_sq8_refine_b64: against FAISS SQ8 + refine: the same for 64 queries.
    exact_minus_sq8_refine_b1_ms: against FAISS SQ8 + refine: our time - its; 1 query, least nprobe.
    exact_vs_sq8_refine_b1_4x: against FAISS SQ8 + refine: its time / ours, 1 query, four times the
        least nprobe.
    exact_vs_sq8_refine_b16_4x: against FAISS SQ8 + refine: the same for 16 queries.
    exact_vs_sq8_refine_b64_4x: against FAISS SQ8 + refine: the same for 64 queries.
    exact_vs_sq8_refine_b1_nprobe256: against FAISS SQ8 + refine: its time / ours, 1 query, 256
        clusters.
    exact_vs_sq8_refine_b16_nprobe256: against FAISS SQ8 + refine: the same for 16 queries.
    exact_vs_sq8_refine_b64_nprobe256: against FAISS SQ8 + refine: the same for 64 queries.
    exact_minus_sq8_refine_b1_nprobe256_ms: against FAISS SQ8 + refine: our time - its, 1 query, 256
        clusters.
    codes_vs_vectors_b1: against our own exact search of the vectors: its time / by 8-bit lists, 1
        query, least nprobe.
    codes_vs_vectors_b16: against our own exact search of the vectors: the same for 16 queries.
    codes_vs_vectors_b64: against our own exact search of the vectors: the same for 64 queries.
    certificate_cost_b1: against our own 8-bit lists without the proof: time with it / without it, 1
        query, least nprobe.
    certificate_cost_b16: against our own 8-bit lists without the proof: the same for 16 queries.
    certificate_cost_b64: against our own 8-bit lists without the proof: the same for 64 queries.
    steps8_over_whole_b1: against our own whole search: time of one search in eight steps / whole,
        both by 8-bit lists and with documents.
    steps8_over_whole_b32: against our own whole search: the same for 32 searches together.
    recall_least: against brute force: recall@10 of the exact search at the least nprobe.
    recall_4x: against brute force: the same at four times it.
    recall_nprobe256: against brute force: the same at 256 clusters.
    ids_equal_clustered: against the exact search of each query alone: queries with equal ids and
        scores / queries compared, vectors in clusters.
    ids_equal_uniform: against the exact search of each query alone: the same for uniform vectors.
    ids_equal_duplicates: against the exact search of each query alone: the same where each vector
        is there about twenty times.
    ids_equal_adversarial: against the exact search of each query alone: the same for lengths from 0
        to 1e10 in one cluster.
    ids_equal_large: against the exact search of the vectors: queries of the large index whose ids
        are the same by every way of ours with a proof / queries compared.
    ids_equal_sq8_refine: against the exact search of the vectors: queries of the large index whose
        ids FAISS SQ8 + refine finds in the same order / queries compared.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.answers import too_few
from bench.baselines.faiss_coded import FaissCoded
from bench.garbage import little_garbage
from bench.measure import Pairs, differences, median, ratios
from bench.research.equal_ids import EQUAL, compare_ids, share_of
from bench.research.search_steps import whole_and_in_steps
from bench.results import Row, SuiteResult, row_of, sizes_of
from bench.search_arms import (
    DOCUMENTS,
    EXACT,
    PROVED,
    SQ8_REFINE,
    UNPROVED,
    VECTORS,
    Arm,
    arms_of,
    coded_searches,
    in_turn,
    labels_of,
)
from bench.vectors import KINDS, IndexSize, Labels, Vectors, build_index, make_mixture
from rag_accel.engines.retrieval import DocumentIndex
from rag_accel.engines.retrieval.vectors.ivf import own_num_clusters
from rag_accel.engines.retrieval.vectors.vectors import thread_count
from rag_accel.system.files import user_cache
from rag_accel.system.processor import usable_cores

_logger = logging.getLogger("bench.stepping")

K = 10
RECALL = 0.99
CALLERS, STEPPED = (1, 16, 64), (1, 32)
QUERY_SEED = 1 << 40
LEAST, FOUR_TIMES = "least nprobe", "4 x least nprobe"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        index: the large index; its ``nprobe`` is the one published besides those found.
        recall_queries: queries that recall is measured with.
        turns: of each number of callers.
        stepped_turns: of searches in steps.
        small_vectors: vectors of each small index.
        small_queries: queries of each kind of vectors, both metrics together.
    """

    index: IndexSize
    recall_queries: int = 512
    turns: Mapping[int, int] = field(default_factory=lambda: {1: 201, 16: 51, 64: 21})
    stepped_turns: int = 11
    small_vectors: int = 10_000
    small_queries: int = 2_500


def _size(vectors: int) -> IndexSize:
    return IndexSize(vectors, own_num_clusters(vectors), 256)


QUICK = Sizes(_size(1_000_000))
FULL = Sizes(
    _size(4_000_000),
    turns={1: 501, 16: 101, 64: 51},
    stepped_turns=25,
    small_vectors=20_000,
    small_queries=5_000,
)


def run(quick: bool, sizes: Sizes | None = None, cache: Path | None = None) -> SuiteResult:
    """Measure; by default in the sizes that ``quick`` stands for."""
    chosen = sizes or (QUICK if quick else FULL)
    threads = min(2, usable_cores())
    rows: list[Row] = []
    index = build_index(chosen.index, cache or user_cache())
    with thread_count(threads), little_garbage():
        found = _Bench(index, chosen, threads, rows).run()
    for kind in KINDS:
        found[f"ids_equal_{kind}"] = compare_ids(
            kind, chosen.small_vectors, chosen.small_queries, rows
        )
    wrong = too_few(rows, EQUAL)
    return SuiteResult("stepping", tuple(rows), found, sizes=sizes_of(chosen), wrong=wrong)


@dataclass(frozen=True, slots=True)
class _Regime:
    """A number of clusters to visit, with a name."""

    name: str
    key: str
    nprobe: int


@dataclass(frozen=True, slots=True)
class _Bench:
    index: DocumentIndex
    sizes: Sizes
    threads: int
    rows: list[Row]

    def run(self) -> dict[str, float]:
        """Measure every regime and number of callers, then searches in steps."""
        found: dict[str, float] = {}
        with coded_searches(self.index) as coded:
            baseline = FaissCoded(self.index)
            arms = arms_of(self.index, coded, baseline, K)
            same: dict[str, list[bool]] = {name: [] for name in (*PROVED, SQ8_REFINE)}
            for regime in self._regimes(arms, baseline, found):
                for count in CALLERS:
                    times = self._timed(arms, regime, count, same)
                    found |= _ratios_of(times, regime, count)
            shares = [
                share_of(name, "large index", same[name], self.rows) for name in (EXACT, DOCUMENTS)
            ]
            found["ids_equal_large"] = min(shares)
            found["ids_equal_sq8_refine"] = sum(same[SQ8_REFINE]) / len(same[SQ8_REFINE])
            del arms, baseline  # their memory is needed
            for count in STEPPED:
                found[f"steps8_over_whole_b{count}"] = self._stepped(coded, count)
        return found

    def _queries(self, count: int, turns: int) -> list[Vectors]:
        mixture = make_mixture(self.sizes.index.dimension)
        seeds = (QUERY_SEED + 1000 * count + turn for turn in range(turns))
        return [mixture.draw(count, seed) for seed in seeds]

    def _regimes(
        self, arms: Mapping[str, Arm], baseline: FaissCoded, found: dict[str, float]
    ) -> list[_Regime]:
        """Return which numbers of clusters are visited, and note the recall of each."""
        queries = self._queries(self.sizes.recall_queries, 1)[0]
        true = baseline.brute_force(queries, K)
        clusters = self.sizes.index.clusters
        least = next(
            nprobe
            for nprobe in range(1, clusters + 1)
            if _recall(labels_of(arms[VECTORS](queries, nprobe)), true) >= RECALL
        )
        published = self.sizes.index.nprobe
        regimes = [
            _Regime(LEAST, "least", least),
            _Regime(FOUR_TIMES, "4x", min(4 * least, clusters)),
            _Regime(f"nprobe {published}", "nprobe256", published),
        ]
        for regime in regimes:
            for name in (EXACT, SQ8_REFINE):
                recall = _recall(labels_of(arms[name](queries, regime.nprobe)), true)
                self._note(name, regime.name, "recall_at_10", recall, len(queries))
                if name == EXACT:
                    found[f"recall_{regime.key}"] = recall
            self._note("all", regime.name, "nprobe", regime.nprobe, clusters)
        return regimes

    def _timed(
        self, arms: Mapping[str, Arm], regime: _Regime, count: int, same: dict[str, list[bool]]
    ) -> dict[str, list[float]]:
        """Return the seconds of every arm, and note which ids are those of the vectors."""
        asked = self._queries(count, self.sizes.turns[count])
        times, found = in_turn(arms, asked, regime.nprobe)
        workload = f"{count} {'query' if count == 1 else 'queries'}, {regime.name}"
        for name, seconds in times.items():
            taken_ms = [1000 * one for one in seconds]
            self.rows.append(row_of(name, workload, "latency_ms", taken_ms))
            _logger.info("%s, %s: %.3f ms", workload, name, median(taken_ms))
        for turn, exact in enumerate(map(labels_of, found[VECTORS])):
            for name, known in same.items():
                known += (labels_of(found[name][turn]) == exact).all(axis=1).tolist()
        return times

    def _stepped(self, coded: Any, count: int) -> float:
        """Return the time in steps / whole, and note steps, times and ids."""
        asked = self._queries(count, self.sizes.stepped_turns)
        pairs, steps, same = whole_and_in_steps(
            self.index, coded, asked, K, self.sizes.index.nprobe, self.threads
        )
        workload = f"{count} {'search' if count == 1 else 'searches'}"
        in_ms = pairs.map(lambda seconds: 1000 * seconds)
        self.rows.append(row_of("whole", workload, "latency_ms", in_ms.plain))
        self.rows.append(row_of("in steps", workload, "latency_ms", in_ms.other))
        self.rows.append(row_of("in steps", workload, "steps", steps))
        share_of("in steps", workload, same, self.rows)
        return median(ratios(pairs))

    def _note(self, system: str, workload: str, metric: str, figure: float, n: int) -> None:
        self.rows.append(Row(system, workload, metric, float(figure), None, n))
        _logger.info("%s, %s: %s %.4g", workload, system, metric, figure)


def _ratios_of(
    times: Mapping[str, Sequence[float]], regime: _Regime, count: int
) -> dict[str, float]:
    """Return the ratios that one number of callers gives in one regime."""
    is_least = regime.key == "least"
    end = f"b{count}" if is_least else f"b{count}_{regime.key}"
    ours = Pairs(tuple(times[EXACT]), tuple(times[SQ8_REFINE]))
    found = {f"exact_vs_sq8_refine_{end}": median(ratios(ours))}
    if count == 1 and regime.key != "4x":
        found[f"exact_minus_sq8_refine_{end}_ms"] = -1000 * median(differences(ours))
    if is_least:
        vectors = Pairs(tuple(times[EXACT]), tuple(times[VECTORS]))
        unproved = Pairs(tuple(times[UNPROVED]), tuple(times[EXACT]))
        found[f"codes_vs_vectors_{end}"] = median(ratios(vectors))
        found[f"certificate_cost_{end}"] = median(ratios(unproved))
    return found


def _recall(found: Labels, true: Labels) -> float:
    """Return which share of the truly nearest was found."""
    return float(
        np.mean([len(set(one) & set(other)) for one, other in zip(found, true, strict=True)]) / K
    )

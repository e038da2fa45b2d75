"""An engine over a flat FAISS index of the program: the searches of many callers in one call."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from rag_accel.engine_api import (
    Document,
    EngineOutput,
    EngineProfile,
    LatencyModel,
    PrimitiveKind,
    ScoredDocument,
    StepBudget,
)
from rag_accel.engines.retrieval.flat_products import (
    MARGIN,
    FlatView,
    fetch_together,
    settled,
)
from rag_accel.engines.retrieval.pending_requests import PendingRequests
from rag_accel.engines.retrieval.search_request import Search, checked_searches, grouped
from rag_accel.engines.retrieval.vectors.search_threads import SearchThreads
from rag_accel.engines.retrieval.vectors.spec import Vectors
from rag_accel.engines.retrieval.vectors.vectors import load_faiss, thread_count
from rag_accel.system.processor import usable_cores

#: searches, and numbers in the index, from which one matrix product is faster than scans: of 16 it
#: takes as long over 4 million numbers, and two thirds over 8 million; of 64 less than a third
MULTIPLY_FROM = 16
MIN_NUMBERS = 1 << 22
#: searches that FAISS makes in one call; releases before 1.15 multiply from 20 on, and round so
SCANNED = 16
#: cores that a product leaves to the callers of the other searches, who share the interpreter
CALLERS_CORES = 1

_FIRST_GUESS = LatencyModel(base_s=0.0005, per_item_s=0.001)


class FlatIndexEngine(PendingRequests):
    """An engine for SEARCHING (``SearchQuery``) on a FAISS ``IndexFlat`` of L2 or inner products.

    Each result is what ``index.search`` returns for the query alone on one thread, bit for bit.
    (For a single query on several threads FAISS itself rounds the last digit differently.) A
    crowd's searches share one call, which FAISS spreads over its threads. On a large index the
    vectors are read once for all of them, in one matrix product; the nearest few are then measured
    as FAISS measures them in a scan. A query whose order that leaves open, because of ties or of
    rounding at the cut, is scanned for.

    Nothing is copied or kept: the next search finds added vectors. As with ``index.search``,
    the index must not change meanwhile.

    Final value: ``tuple[ScoredDocument, ...]``, best first, ``k`` of them at most. The
    ``id`` of a document is its place in the index; a score is the inner product, or the negated
    squared L2 distance. ``where`` and ``nprobe`` must be None.

    Args:
        index: a ``faiss.IndexFlat`` or subclass with one of these two metrics.
        max_batch: queries of one step.
    """

    def __init__(self, index: Any, *, max_batch: int = 64) -> None:
        self._index = index
        super().__init__(
            EngineProfile(
                kinds=frozenset({PrimitiveKind.SEARCHING}),
                max_batch=max_batch,
                latency=_FIRST_GUESS,
                max_threads=usable_cores(),
                pure=True,
            )
        )
        self._scan_threads, self._product_threads = SearchThreads(), SearchThreads()

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """End everything that was submitted.

        A scan runs on the threads that FAISS is set to or on one, whichever was measured to be
        faster; so does a product, which leaves a core to the callers.
        """
        view = FlatView.of(self._index)
        searches, outputs = checked_searches(self._taken(), view.dimension)
        for group in grouped(searches, Search.group_key):
            outputs += self._group(view, group)
        return outputs

    def _group(self, view: FlatView, group: list[Search]) -> list[EngineOutput]:
        outputs, rest = list[EngineOutput](), group
        most = max(search.query.k for search in group) + MARGIN
        if len(group) >= MULTIPLY_FROM and view.numbers >= MIN_NUMBERS and most <= view.size:
            outputs, rest = self._multiplied(view, group, most)
        for same in grouped(rest, lambda search: search.query.k):
            for start in range(0, len(same), SCANNED):
                outputs += self._scanned(view, same[start : start + SCANNED])
        return outputs

    def _multiplied(
        self, view: FlatView, group: list[Search], most: int
    ) -> tuple[list[EngineOutput], list[Search]]:
        """Return the results that one matrix product settles, and the searches it does not."""
        queries = np.stack([search.vector for search in group])
        counts = np.array([search.query.k for search in group])
        threads = min(load_faiss().omp_get_max_threads(), usable_cores() - CALLERS_CORES)
        fetch = partial(fetch_together, view, queries, most)
        found = measured(fetch, len(group) * view.numbers, max(1, threads), self._product_threads)
        scores, places, is_clear = settled(view, queries, counts, *found)
        outputs, rest = list[EngineOutput](), list[Search]()
        for search, mine, there, clear in zip(group, scores, places, is_clear, strict=True):
            if clear:
                outputs.append(_final(search, mine[: search.query.k], there[: search.query.k]))
            else:
                rest.append(search)
        return outputs, rest

    def _scanned(self, view: FlatView, same: list[Search]) -> list[EngineOutput]:
        """Return the results of searches with one ``k``; FAISS scans for each."""
        queries = np.stack([search.vector for search in same])
        try:
            numbers, places = self._scan(queries, same[0].query.k)
        except Exception as error:
            return [EngineOutput(search.id, "error", error=error) for search in same]
        outputs = list[EngineOutput]()
        for search, mine, there in zip(same, numbers * view.sign, places, strict=True):
            outputs.append(_final(search, mine[there >= 0], there[there >= 0]))
        return outputs

    def _scan(self, queries: Vectors, k: int) -> tuple[Any, Any]:
        """Return FAISS's numbers and places, on as many threads as such scans are fastest on."""
        # A single query on several threads would be rounded otherwise.
        if len(queries) == 1:
            with thread_count(1):
                return self._index.search(queries, k)
        return measured_scan(self._index, queries, k, self._scan_threads)


def measured_scan(index: Any, queries: Vectors, k: int, learned: SearchThreads) -> tuple[Any, Any]:
    """Search an index on the number of threads that takes least.

    The calling thread's own number is the most, and is unchanged afterwards.
    """
    most = max(1, load_faiss().omp_get_max_threads())
    numbers = len(queries) * index.ntotal * index.d
    return measured(partial(index.search, queries, k), numbers, most, learned)


def measured(
    search: Callable[[], tuple[Any, Any]], numbers: int, most: int, learned: SearchThreads
) -> tuple[Any, Any]:
    """Return ``search()``, which reads ``numbers``, on one thread or ``most``, as was learned."""
    threads = learned.choose(numbers, most)
    with thread_count(threads):
        started = time.perf_counter()
        found = search()
        taken_s = time.perf_counter() - started
    learned.note(numbers, threads, taken_s)
    return found


def is_searchable(index: Any) -> bool:
    """Tell whether a ``FlatIndexEngine`` can search an index."""
    known, metrics = _searchable()
    return type(index) in known and index.metric_type in metrics


@cache
def _searchable() -> tuple[frozenset[type], frozenset[int]]:
    """Return the classes of indexes that can be searched, and the metrics."""
    faiss = load_faiss()
    return (
        frozenset((faiss.IndexFlat, faiss.IndexFlatL2, faiss.IndexFlatIP)),
        frozenset((faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT)),
    )


def scored(scores: Any, places: Any) -> tuple[ScoredDocument, ...]:
    """Return documents that are named by their places."""
    pairs = zip(places.tolist(), scores.tolist(), strict=True)
    return tuple(ScoredDocument(Document(str(place), ""), score) for place, score in pairs)


def _final(search: Search, scores: Any, places: Any) -> EngineOutput:
    return EngineOutput(search.id, "final", value=scored(scores, places))

"""A flat FAISS index owned elsewhere: the searches of many callers in one call."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from rag_accel.engine_api import (
    Document,
    EngineBase,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    LatencyModel,
    PrimitiveKind,
    ScoredDocument,
    StepBudget,
    WorkId,
)
from rag_accel.engines.retrieval.search_request import Search, checked_search, grouped
from rag_accel.engines.retrieval.vectors.search_threads import SearchThreads
from rag_accel.engines.retrieval.vectors.spec import Vectors
from rag_accel.engines.retrieval.vectors.vectors import load_faiss, thread_count
from rag_accel.system.processor import usable_cores

#: searches, and numbers in the index, from which one matrix product is faster than scans
MULTIPLY_FROM = 20
MIN_NUMBERS = 1 << 22
#: searches that FAISS makes in one call; releases before 1.15 multiply from 20 on, and round so
SCANNED = 16
#: scores that are held at a time
BLOCK_SCORES = 1 << 22
#: columns of which only the maximum is looked at first
GROUP = 64
#: fetched beyond ``k``, so that rounding at the cut seldom matters
MARGIN = 8
#: relative rounding of one operation in float32
UNIT_ROUNDING = 2.0**-24

_FIRST_GUESS = LatencyModel(base_s=0.0005, per_item_s=0.001)


class FlatIndexEngine(EngineBase):
    """An engine for SEARCHING (``SearchQuery``) on a FAISS ``IndexFlat`` of L2 or inner products.

    Each result is what ``index.search`` returns for the query alone on one thread, bit for bit.
    (For a single query on several threads FAISS itself rounds the last digit differently.) A
    crowd's searches share one call, which FAISS spreads over its threads. On a large index the
    vectors are read once for all of them, in one matrix product; the nearest few are then measured
    as FAISS measures them in a scan. A query whose order that leaves open, because of ties or of
    rounding at the cut, is scanned for.

    Nothing is copied or kept: the next search finds what was added. As with ``index.search``,
    the index must not change meanwhile.

    Final value: ``tuple[ScoredDocument, ...]``, best first, as many as there are up to ``k``. The
    ``id`` of a document is its place in the index; a score is the inner product, or the negated
    squared L2 distance. ``where`` and ``nprobe`` must be None.

    Args:
        index: a ``faiss.IndexFlat`` or subclass with one of these two metrics.
        max_batch: queries of one step.
    """

    def __init__(self, index: Any, *, max_batch: int = 64) -> None:
        self._index = index
        self._profile = EngineProfile(
            kinds=frozenset({PrimitiveKind.SEARCHING}),
            max_batch=max_batch,
            latency=_FIRST_GUESS,
            max_threads=usable_cores(),
            pure=True,
        )
        self._pending: dict[WorkId, EngineRequest] = {}
        self._search_threads = SearchThreads()

    @property
    def profile(self) -> EngineProfile:
        """Return what this engine does."""
        return self._profile

    def submit(self, work: Sequence[EngineRequest]) -> None:
        """Take work; it is looked at in the next step."""
        for request in work:
            self._pending[request.id] = request

    def cancel(self, ids: Sequence[WorkId]) -> None:
        """Forget work."""
        for work in ids:
            self._pending.pop(work, None)

    def close(self) -> None:
        """Forget all work; the index stays the caller's."""
        self._pending.clear()

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """End everything that was submitted.

        A product runs on the threads that NumPy is set to, a scan on those that FAISS is set to or
        on one, whichever was measured to be faster.
        """
        work, self._pending = list(self._pending.values()), {}
        outputs, searches = list[EngineOutput](), list[Search]()
        for request in work:
            try:
                searches.append(checked_search(request, self._index.d))
            except Exception as error:
                outputs.append(EngineOutput(request.id, "error", error=error))
        for group in grouped(searches, Search.group_key):
            outputs += self._group(group)
        return outputs

    def _group(self, group: list[Search]) -> list[EngineOutput]:
        outputs, rest = list[EngineOutput](), group
        most = max(search.query.k for search in group) + MARGIN
        numbers = self._index.ntotal * self._index.d
        if len(group) >= MULTIPLY_FROM and numbers >= MIN_NUMBERS and most <= self._index.ntotal:
            outputs, rest = self._multiplied(group, most)
        for same in grouped(rest, lambda search: search.query.k):
            for start in range(0, len(same), SCANNED):
                outputs += self._scanned(same[start : start + SCANNED])
        return outputs

    def _multiplied(
        self, group: list[Search], most: int
    ) -> tuple[list[EngineOutput], list[Search]]:
        """Return the results that one matrix product settles, and the searches it does not."""
        queries = np.stack([search.vector for search in group])
        counts = np.array([search.query.k for search in group])
        found = fetch_together(self._index, queries, most)
        scores, places, is_clear = _settled(self._index, queries, counts, *found)
        outputs, rest = list[EngineOutput](), list[Search]()
        for search, mine, there, clear in zip(group, scores, places, is_clear, strict=True):
            if clear:
                outputs.append(_final(search, mine[: search.query.k], there[: search.query.k]))
            else:
                rest.append(search)
        return outputs, rest

    def _scanned(self, same: list[Search]) -> list[EngineOutput]:
        """Return the results of searches with one ``k``; FAISS scans for each."""
        queries = np.stack([search.vector for search in same])
        try:
            numbers, places = self._scan(queries, same[0].query.k)
        except Exception as error:
            return [EngineOutput(search.id, "error", error=error) for search in same]
        outputs = list[EngineOutput]()
        for search, mine, there in zip(same, numbers * sign(self._index), places, strict=True):
            outputs.append(_final(search, mine[there >= 0], there[there >= 0]))
        return outputs

    def _scan(self, queries: Vectors, k: int) -> tuple[Any, Any]:
        """Return FAISS's numbers and places, on as many threads as such scans are fastest on."""
        # A single query on several threads would be rounded otherwise.
        if len(queries) == 1:
            with thread_count(1):
                return self._index.search(queries, k)
        return measured_scan(self._index, queries, k, self._search_threads)


def measured_scan(index: Any, queries: Vectors, k: int, learned: SearchThreads) -> tuple[Any, Any]:
    """Return what ``index.search`` does, on the number of threads with which it takes least.

    The calling thread's own number is the most, and has not changed afterwards.
    """
    most = max(1, load_faiss().omp_get_max_threads())
    numbers = len(queries) * index.ntotal * index.d
    threads = learned.choose(numbers, most)
    with thread_count(threads):
        started = time.perf_counter()
        found = index.search(queries, k)
        taken_s = time.perf_counter() - started
    learned.note(numbers, threads, taken_s)
    return found


def is_searchable(index: Any) -> bool:
    """Tell whether a ``FlatIndexEngine`` can search an index."""
    faiss = load_faiss()
    known = (faiss.IndexFlat, faiss.IndexFlatL2, faiss.IndexFlatIP)
    metrics = (faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT)
    return type(index) in known and index.metric_type in metrics


def sign(index: Any) -> int:
    """Return what FAISS's numbers are multiplied with to be scores."""
    return 1 if index.metric_type == load_faiss().METRIC_INNER_PRODUCT else -1


def fetch_together(index: Any, queries: Vectors, count: int) -> tuple[Any, Any]:
    """Return scores and places ``[n, count]``, best first, rounded as a matrix product rounds."""
    parts = list[tuple[Any, Any]]()
    width = max(BLOCK_SCORES // len(queries), 2 * count * GROUP)
    vectors = _vectors(index)
    # Infinities and NaN are settled afterwards, by a search alone.
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(vectors), width):
            scores = _scores(index, queries, vectors[start : start + width])
            places = _best(scores, count)
            parts.append((np.take_along_axis(scores, places, 1), places + start))
    scores, places = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
    order = np.argsort(-scores, axis=1)[:, :count]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(places, order, 1)


def _vectors(index: Any) -> Vectors:
    """Return FAISS's own memory ``[ntotal, d]``: to be used at once."""
    return load_faiss().rev_swig_ptr(index.get_xb(), index.ntotal * index.d).reshape(-1, index.d)


def _scores(index: Any, queries: Vectors, vectors: Vectors) -> Any:
    """Return ``[n, m]``, by one product of matrices."""
    scores = queries @ vectors.T
    if sign(index) < 0:
        scores *= 2
        scores -= np.square(queries).sum(axis=1)[:, None]
        scores -= _squares(vectors)
    return scores


def _best(scores: Any, count: int) -> Any:
    """Return the columns ``[n, count]`` of the highest scores of each row, or all, in any order.

    They lie in the ``count`` groups of columns with the highest maxima, so few are ever sorted.
    """
    n, m = scores.shape
    if m <= count:
        return np.broadcast_to(np.arange(m), (n, m))
    groups = m // GROUP
    if groups <= count:
        return np.argpartition(scores, m - count, axis=1)[:, m - count :]
    maxima = scores[:, : groups * GROUP].reshape(n, groups, GROUP).max(axis=2)
    highest = np.argpartition(maxima, groups - count, axis=1)[:, groups - count :]
    columns = (highest[:, :, None] * GROUP + np.arange(GROUP)).reshape(n, -1)
    rest = np.broadcast_to(np.arange(groups * GROUP, m), (n, m - groups * GROUP))
    columns = np.concatenate([columns, rest], axis=1)
    few = np.take_along_axis(scores, columns, 1)
    chosen = np.argpartition(few, few.shape[1] - count, axis=1)[:, few.shape[1] - count :]
    return np.take_along_axis(columns, chosen, 1)


def _settled(
    index: Any, queries: Vectors, counts: Any, scores: Any, places: Any
) -> tuple[Any, Any, Any]:
    """Return what a product fetched as single searches would, and for which queries that holds.

    It does not if rounding may have kept a vector from being fetched that is nearer than the last
    of ``counts [n]``, or if there are ties.

    Returns:
        Scores and places ``[n, m]``, best first, and whether they are settled, ``[n]``.
    """
    exact = measured(index, queries, places)
    order = np.argsort(-exact, axis=1, kind="stable")
    ranked = np.take_along_axis(exact, order, 1)
    kth = np.take_along_axis(ranked, counts[:, None] - 1, 1)[:, 0]
    # Also of NaN and infinities this says no.
    with np.errstate(over="ignore", invalid="ignore"):
        is_clear = scores[:, -1] < kth - _rounding(index, queries, kth)
    is_tied = (ranked[:, :-1] == ranked[:, 1:]) & (
        np.arange(MARGIN + counts.max() - 1) < counts[:, None]
    )
    return ranked, np.take_along_axis(places, order, 1), is_clear & ~is_tied.any(axis=1)


def measured(index: Any, queries: Vectors, places: Any) -> Any:
    """Return scores ``[n, m]`` of the vectors at these places, as single searches have them."""
    faiss = load_faiss()
    numbers = np.empty(places.shape, dtype=np.float32)
    places = np.ascontiguousarray(places, dtype=np.int64)
    pointers = map(faiss.swig_ptr, (numbers, places))
    index.compute_distance_subset(len(queries), faiss.swig_ptr(queries), places.shape[1], *pointers)
    return numbers * sign(index)


def _rounding(index: Any, queries: Vectors, kth: Any) -> Any:
    """Return how far a product's score may be off of a vector that is nearer than the ``k``-th.

    Of a dot product of ``d`` numbers in float32, in whatever order, the error is at most ``d``
    roundings of the product of the lengths; both ways of measuring have it. A vector that is nearer
    than the ``k``-th is no longer than the query and that distance together.
    """
    lengths = np.linalg.norm(queries, axis=1)
    per_length = 2 * (index.d + 4) * UNIT_ROUNDING
    if sign(index) > 0:
        return per_length * lengths * _longest(index)
    return per_length * (2 * lengths + np.sqrt(np.abs(kth))) ** 2


def _longest(index: Any) -> float:
    """Return the length of the longest vector."""
    return float(_squares(_vectors(index)).max()) ** 0.5


def _squares(vectors: Vectors) -> Any:
    """Return the squared lengths ``[m]``, float32, of vectors ``[m, d]``."""
    faiss = load_faiss()
    squares = np.empty(len(vectors), dtype=np.float32)
    pointers = map(faiss.swig_ptr, (squares, vectors))
    faiss.fvec_norms_L2sqr(*pointers, vectors.shape[1], len(vectors))
    return squares


def _final(search: Search, scores: Any, places: Any) -> EngineOutput:
    pairs = zip(places.tolist(), scores.tolist(), strict=True)
    found = tuple(ScoredDocument(Document(str(place), ""), score) for place, score in pairs)
    return EngineOutput(search.id, "final", value=found)

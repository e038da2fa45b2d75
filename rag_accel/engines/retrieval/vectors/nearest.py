"""The exact top k of what FAISS fetched, the same for a query alone and in any batch.

FAISS may sum in another order when the batch is large (it then calls BLAS), so its float32 scores
of one pair differ in the last bits from batch to batch, and its order among equal scores is that of
its heap. Here every fetched candidate is scored again in float64, one row at a time, and sorted by
(score, label). That settles the order, but not whether a vector *not* fetched belongs in. It cannot
if FAISS's last fetched score lies below the k-th exact score by more than float32 summation can be
wrong; otherwise more is fetched. So there is no tolerance to state: ids, order and scores are those
of float64, whatever the batch.

An index with codes leaves that open: its candidates are the best by their codes, and what these
rank too low is missed. Scores and order are exact for what is returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.vectors.spec import Metric, Vectors, norms
from rag_accel.engines.retrieval.vectors.vectors import (
    NO_LABEL,
    SMALLEST_NORMAL,
    UNIT_ROUNDOFF,
    Scores,
    SearchScope,
    VectorIndex,
)

ExactScores = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

MARGIN = 4  # fetched beyond k, so that near ties at the cut seldom need a second fetch
GROWTH = 4  # how many times more the next fetch takes
MAX_GATHERED = 1 << 20  # numbers; FAISS gathers on several threads from 1000 vectors on
MAX_RESCORED = 1 << 16  # float64 numbers held at once while rescoring; 512 KiB stay in the cache


@dataclass(frozen=True, slots=True)
class Hits:
    """One query's nearest labels and their float64 scores, best first."""

    labels: Labels
    scores: ExactScores


_NONE = Hits(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64))


def nearest(
    index: VectorIndex,
    queries: Vectors,
    ks: Sequence[int],
    scope: SearchScope,
    *,
    without_codes: bool = False,
    fetched: tuple[Scores, Labels] | None = None,
) -> list[Hits]:
    """Return for each query its ``ks[i]`` nearest vectors in scope; equal scores by label.

    A query whose clusters hold fewer than it asked for is searched again in every cluster, so that
    it finds fewer only if the scope holds fewer. ``ks`` may hold numbers below 1: none is found.
    An index with codes is searched by them, unless ``without_codes``. Candidates already
    ``fetched``, ``[n, count]`` as by ``VectorIndex.fetch``, are taken for the best in scope: more
    are fetched only where near ties at the end leave the order open.
    """
    hits = [_NONE] * len(queries)
    limits = np.asarray([limit_of(k, scope.size) for k in ks], dtype=np.int64)
    rows = np.flatnonzero(limits > 0)
    if len(rows):
        if index.refine and not without_codes:
            _search_codes(index, queries, limits, scope, rows, hits)
        else:
            _search(index, queries, limits, scope, rows, hits, fetched)
    short = [row for row, limit in enumerate(limits) if len(hits[row].labels) < limit]
    if short:
        every = replace(scope, nprobe=index.num_clusters)
        _search(index, queries, limits, every, np.asarray(short, dtype=np.intp), hits)
    return hits


def limit_of(k: int, size: int) -> int:
    """Return how many of ``size`` vectors can be found for ``k``; 0 for ``k`` below 1."""
    return max(0, min(int(k), size))


def num_fetched(limit: int, size: int) -> int:
    """Return how many of ``size`` vectors are fetched first to find ``limit``."""
    return min(limit + MARGIN, size)


def nearest_of(index: VectorIndex, query: Vectors, limit: int, labels: Labels) -> Hits:
    """Return the nearest of these labels, at most ``limit`` of them; ``limit`` is 1 or more."""
    bounds = np.full(1, -np.inf)
    (hits,) = _settled(index, query[None], np.asarray([limit]), labels[None], bounds)
    assert hits is not None, "nothing is left open"
    return hits


def _search(
    index: VectorIndex,
    queries: Vectors,
    limits: Labels,
    scope: SearchScope,
    rows: Rows,
    hits: list[Hits],
    fetched: tuple[Scores, Labels] | None = None,
) -> None:
    """Fill ``hits`` for the given rows of ``queries``, fetching more for those not settled."""
    count = num_fetched(int(limits[rows].max(initial=0)), scope.size)
    while len(rows):
        count = min(count, scope.size)
        open_queries, wanted = queries[rows], limits[rows]
        if fetched is None:
            scores, labels = index.fetch(open_queries, count, scope)
        else:
            scores, labels = fetched[0][rows], fetched[1][rows]
            fetched, count = None, labels.shape[1]
        is_all = (labels[:, -1] == NO_LABEL) | (count == scope.size)
        bounds = np.where(is_all, -np.inf, scores[:, -1].astype(np.float64))
        settled = _settled(index, open_queries, wanted, labels, bounds)
        for row, found_hits in zip(rows, settled, strict=True):
            if found_hits is not None:
                hits[row] = found_hits
        rows = rows[[found_hits is None for found_hits in settled]]
        count *= GROWTH


def _search_codes(
    index: VectorIndex,
    queries: Vectors,
    limits: Labels,
    scope: SearchScope,
    rows: Rows,
    hits: list[Hits],
) -> None:
    """Fill ``hits`` for the given rows of ``queries`` from the best candidates by their codes."""
    counts = np.minimum(limits[rows] * min(index.refine, scope.size), scope.size)
    _, labels = index.fetch_coded(queries[rows], int(counts.max()), scope)
    # A query gets as many candidates as it would alone.
    labels[np.arange(labels.shape[1]) >= counts[:, None]] = NO_LABEL
    all_fetched = np.full(len(rows), -np.inf)
    settled = _settled(index, queries[rows], limits[rows], labels, all_fetched)
    for row, found_hits in zip(rows, settled, strict=True):
        assert found_hits is not None, "nothing is left open"
        hits[row] = found_hits


def _settled(
    index: VectorIndex, queries: Vectors, limits: Labels, labels: Labels, bounds: ExactScores
) -> list[Hits | None]:
    """Return for each query its exact hits among candidates; None where more must be fetched.

    Args:
        index: holds the candidates.
        queries: ``[n, dim]``.
        limits: how many to keep of each, ``[n]``; at least 1 and at most the number of columns.
        labels: the candidates, ``[n, m]``, ``NO_LABEL`` at the end of rows that hold fewer.
        bounds: ``[n]``; no vector in question that was not fetched has a FAISS score above it,
            minus infinity if all were fetched.
    """
    ends = np.minimum(limits, np.count_nonzero(labels != NO_LABEL, axis=1))
    exact = np.full(labels.shape, -np.inf)
    _rescore(index, queries, labels, exact)
    order = np.lexsort((labels, -exact), axis=-1)
    rows = np.arange(len(order))
    exact, labels = exact[rows[:, None], order], labels[rows[:, None], order]
    last_kept = exact[rows, limits - 1]
    with np.errstate(invalid="ignore"):  # infinities, where a row ended early
        is_settled = bounds + _slack(index, queries, last_kept) < last_kept
    is_settled |= np.isneginf(bounds)
    return [
        Hits(labels[row, :end], exact[row, :end]) if settled else None
        for row, (end, settled) in enumerate(zip(ends.tolist(), is_settled.tolist(), strict=True))
    ]


def _rescore(index: VectorIndex, queries: Vectors, labels: Labels, exact: ExactScores) -> None:
    """Write the exact scores of ``labels: [n, m]`` into the first columns of ``exact``."""
    if (labels == NO_LABEL).any():
        _rescore_pairs(index, queries, labels, exact, *np.nonzero(labels != NO_LABEL))
        return
    width, dimension = labels.shape[1], queries.shape[1]
    at_once = max(1, MAX_GATHERED // max(1, width * dimension))
    step = max(1, MAX_RESCORED // max(1, width * dimension))
    for first in range(0, len(labels), at_once):
        part = labels[first : first + at_once]
        vectors = index.gather(part.ravel()).reshape(*part.shape, dimension)
        for start in range(0, len(part), step):
            rows = slice(first + start, min(first + start + step, first + at_once))
            block = vectors[start : start + step]
            exact[rows, :width] = exact_scores(index.metric, queries[rows, None, :], block)


def _rescore_pairs(
    index: VectorIndex,
    queries: Vectors,
    labels: Labels,
    exact: ExactScores,
    rows: Rows,
    columns: Rows,
) -> None:
    """Write the exact scores of some of ``labels: [n, m]`` into ``exact``."""
    step = max(1, MAX_RESCORED // queries.shape[1])
    for start in range(0, len(rows), step):
        row, column = rows[start : start + step], columns[start : start + step]
        vectors = index.gather(labels[row, column])
        exact[row, column] = exact_scores(index.metric, queries[row], vectors)


def exact_scores(metric: Metric, queries: Vectors, vectors: Vectors) -> ExactScores:
    """Return the float64 scores of ``vectors: [..., dim]`` and the queries they are paired with.

    ``queries`` are one for each vector, or broadcast to that. ``einsum`` adds along the contiguous
    last axis in the same order for every number of rows, so a pair's score does not depend on the
    batch (a matrix product would make it depend).
    """
    numbers, others = vectors.astype(np.float64), queries.astype(np.float64)
    if metric is Metric.INNER_PRODUCT:
        return np.einsum("...d,...d->...", numbers, others)
    np.subtract(numbers, others, out=numbers)
    return 0.0 - np.einsum("...d,...d->...", numbers, numbers)


def _slack(index: VectorIndex, queries: Vectors, last_kept: ExactScores) -> ExactScores:
    """Bound by how much FAISS may underrate a vector that belongs among the kept ones.

    A float32 sum of n products is off by at most ``n * u`` times the sum of their magnitudes, in
    whatever order it is added. That is ``n*u*|q|*|x|`` for an inner product; for L2, which may be
    computed as ``|q|^2 - 2qx + |x|^2``, it is ``n*u*(|q| + |x|)^2``, and a vector nearer than the
    last kept one, at distance r, has ``|x| <= |q| + r``.
    """
    dimension = queries.shape[1]
    relative = (dimension + 8) * UNIT_ROUNDOFF  # 8: the few operations around the sum
    underflow = dimension * SMALLEST_NORMAL
    lengths = norms(queries)
    if index.metric is Metric.INNER_PRODUCT:
        return relative * lengths * index.max_norm + underflow
    return relative * (2 * lengths + np.sqrt(-last_kept)) ** 2 + underflow

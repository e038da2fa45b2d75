"""The exact top k of what FAISS fetched, the same for a query alone and in any batch.

FAISS may sum in another order when the batch is large (it then calls BLAS), so its float32 scores
of one pair differ in the last bits from batch to batch, and its order among equal scores is that of
its heap. Here every fetched candidate is scored again in float64, one row at a time, and sorted by
(score, label). That settles the order, but not whether a vector *not* fetched belongs in. It cannot
if FAISS's last fetched score lies below the k-th exact score by more than float32 summation can be
wrong; otherwise more is fetched. So there is no tolerance to state: ids, order and scores are those
of float64, whatever the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

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
SOURCE_FETCHES = 2  # a query not settled then is an exception; the index itself settles it
GROWTH = 4  # how many times more the next fetch takes
# Looked at beyond k before a bound drops the others. Of a million, 16 could be among the nearest 10
# in the median of queries, 21 in nine of ten, 27 in 99 of 100.
HEAD = 10
MAX_GATHERED = 1 << 20  # numbers; FAISS gathers on several threads from 1000 vectors on
MAX_RESCORED = 1 << 16  # float64 numbers held at once while rescoring; 512 KiB stay in the cache


@dataclass(frozen=True, slots=True)
class Hits:
    """One query's nearest labels and their float64 scores, best first."""

    labels: Labels
    scores: ExactScores


_NONE = Hits(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64))


@dataclass(frozen=True, slots=True)
class Candidates:
    """Fetched vectors, with bounds on the scores of these and of all others.

    Args:
        labels: ``[n, m]``, best first, ``NO_LABEL`` at the end of rows that hold fewer.
        bounds: ``[n]``, float64; no vector in question that was not fetched has a FAISS score
            above it.
        highest: ``[n, m]``, float64; no exact score is above it. None knows nothing of that.
    """

    labels: Labels
    bounds: ExactScores
    highest: ExactScores | None = None


class Source(Protocol):
    """Another source of candidates than the index: the same vectors by approximate scores."""

    def first_count(self, limit: int) -> int:
        """Return how many to fetch at first where ``limit`` are wanted."""
        ...

    def fetch(self, queries: Vectors, count: int, scope: SearchScope) -> tuple[Scores, Labels]:
        """Return scores and labels as ``VectorIndex.fetch`` does."""
        ...

    def candidates(self, queries: Vectors, scores: Scores, labels: Labels) -> Candidates:
        """Return the candidates, with the bounds that the scores of ``fetch`` set to exact ones."""
        ...


def nearest(
    index: VectorIndex,
    queries: Vectors,
    ks: Sequence[int],
    scope: SearchScope,
    source: Source | None = None,
) -> list[Hits]:
    """Return for each query its ``ks[i]`` nearest vectors in scope; equal scores by label.

    A query whose clusters hold fewer than it asked for is searched again in every cluster, so that
    it finds fewer only if the scope holds fewer. ``ks`` may hold numbers below 1: none is found.
    With a ``source`` the candidates come from there, as long as it needs few fetches.
    """
    hits = [_NONE] * len(queries)
    limits = np.asarray([limit_of(k, scope.size) for k in ks], dtype=np.int64)
    rows = np.flatnonzero(limits > 0)
    if source is not None:
        rows = _search(index, source, SOURCE_FETCHES, queries, limits, scope, rows, hits)
    own = IndexSource(index)
    if len(rows):
        _search(index, own, None, queries, limits, scope, rows, hits)
    short = [row for row, limit in enumerate(limits) if len(hits[row].labels) < limit]
    if short:
        every = replace(scope, nprobe=index.num_clusters)
        rows = np.asarray(short, dtype=np.intp)
        _search(index, own, None, queries, limits, every, rows, hits)
    return hits


@dataclass(frozen=True, slots=True)
class IndexSource:
    """The index itself as the source of candidates; a ``Source``."""

    index: VectorIndex

    def first_count(self, limit: int) -> int:
        """Return a little more than is wanted."""
        return limit + MARGIN

    def fetch(self, queries: Vectors, count: int, scope: SearchScope) -> tuple[Scores, Labels]:
        """Return the scores and labels of the index."""
        return self.index.fetch(queries, count, scope)

    def candidates(self, queries: Vectors, scores: Scores, labels: Labels) -> Candidates:
        """Return all that was fetched: ``prove_nearest`` knows how far these scores can be off."""
        return Candidates(labels, scores[:, -1].astype(np.float64))


def limit_of(k: int, size: int) -> int:
    """Return how many of ``size`` vectors can be found for ``k``; 0 for ``k`` below 1."""
    return max(0, min(int(k), size))


def _search(
    index: VectorIndex,
    source: Source,
    fetches: int | None,
    queries: Vectors,
    limits: Labels,
    scope: SearchScope,
    rows: Rows,
    hits: list[Hits],
) -> Rows:
    """Fill ``hits`` for the given rows of ``queries``, fetching more for those not settled.

    Returns the rows that are not settled after ``fetches`` fetches; None allows any number.
    """
    count = source.first_count(int(limits[rows].max(initial=0)))
    number = 0
    while len(rows) and number != fetches:
        count = min(count, scope.size)
        open_queries, wanted = queries[rows], limits[rows]
        scores, labels = source.fetch(open_queries, count, scope)
        is_all = (labels[:, -1] == NO_LABEL) | (count == scope.size)
        found = source.candidates(open_queries, scores, labels)
        bounds = np.where(is_all, -np.inf, found.bounds)
        settled = prove_nearest(index, open_queries, wanted, replace(found, bounds=bounds))
        for row, found_hits in zip(rows, settled, strict=True):
            if found_hits is not None:
                hits[row] = found_hits
        rows = rows[[found_hits is None for found_hits in settled]]
        count *= GROWTH
        number += 1
    return rows


def prove_nearest(
    index: VectorIndex, queries: Vectors, limits: Labels, found: Candidates
) -> list[Hits | None]:
    """Return for each query its exact hits among candidates; None where more must be fetched.

    Args:
        index: holds the candidates.
        queries: ``[n, dim]``.
        limits: how many to keep of each, ``[n]``; at least 1 and at most the number of columns.
        found: the candidates; a bound of minus infinity says that all were fetched.
    """
    exact, labels = _rescored(index, queries, limits, found)
    last_kept = exact[np.arange(len(queries)), limits - 1]
    with np.errstate(invalid="ignore"):  # infinities, where a row ended early
        is_settled = found.bounds + _slack(index, queries, last_kept) < last_kept
    is_settled |= np.isneginf(found.bounds)
    ends = np.minimum(limits, np.count_nonzero(found.labels != NO_LABEL, axis=1))
    return [
        Hits(labels[row, :end], exact[row, :end]) if settled else None
        for row, (end, settled) in enumerate(zip(ends.tolist(), is_settled.tolist(), strict=True))
    ]


def _rescored(
    index: VectorIndex, queries: Vectors, limits: Labels, found: Candidates
) -> tuple[ExactScores, Labels]:
    """Return exact scores and labels, ``[n, m]`` each, sorted by score, then by label.

    The first candidates are scored first; of the others only those that can be as near as the last
    one kept. Those not scored, and ``NO_LABEL``, come last, with a score of minus infinity.
    """
    exact = np.full(found.labels.shape, -np.inf)
    if found.highest is None:
        _rescore(index, queries, found.labels, exact)
        return _sorted(exact, found.labels)
    width = min(found.labels.shape[1], int(limits.max()) + HEAD)
    _rescore(index, queries, found.labels[:, :width], exact)
    reached = np.sort(exact[:, :width], axis=1)[np.arange(len(limits)), width - limits]
    is_open = found.highest >= reached[:, None]
    is_open[:, :width] = False
    is_open &= found.labels != NO_LABEL
    rows, columns = np.nonzero(is_open)
    if len(rows):
        _rescore_pairs(index, queries, found.labels, exact, rows, columns)
        width = 1 + int(columns.max())
    return _sorted(exact[:, :width], found.labels[:, :width])


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


def _sorted(exact: ExactScores, labels: Labels) -> tuple[ExactScores, Labels]:
    """Return both sorted by falling score, equal scores by rising label."""
    order = np.lexsort((labels, -exact), axis=-1)
    rows = np.arange(len(order))[:, None]
    return exact[rows, order], labels[rows, order]


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

"""Searches of a flat FAISS index by one product of matrices, exact where it can be shown to be.

The vectors are read once for all queries. Scores that a product rounds otherwise than a scan only
choose which vectors are measured again, as FAISS measures them in a scan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rag_accel.engines.retrieval.vectors.spec import Vectors
from rag_accel.engines.retrieval.vectors.vectors import UNIT_ROUNDOFF, load_faiss

#: scores that are held at a time
BLOCK_SCORES = 1 << 22
#: rows of which only the maximum is compared first
GROUP = 64
#: fetched beyond ``k``, so that rounding at the cut seldom matters
MARGIN = 8


@dataclass(frozen=True, slots=True)
class FlatView:
    """A flat index with its properties, read once a step.

    Each call of FAISS releases the interpreter's lock, and getting it back from a crowd of callers
    takes longer than most calls.

    Args:
        index: the index.
        size: how many vectors it holds.
        dimension: of each.
        sign: the factor that turns FAISS's numbers into scores; 1 of inner products.
    """

    index: Any
    size: int
    dimension: int
    sign: int

    @classmethod
    def of(cls, index: Any) -> FlatView:
        """Return a view of an index, which must not change while the view is used."""
        return cls(index, index.ntotal, index.d, sign(index))

    @property
    def numbers(self) -> int:
        """Return how many numbers it holds."""
        return self.size * self.dimension

    def vectors(self) -> Vectors:
        """Return FAISS's own memory ``[size, dimension]``: to be used at once."""
        pointer = self.index.get_xb()
        return load_faiss().rev_swig_ptr(pointer, self.numbers).reshape(-1, self.dimension)


def sign(index: Any) -> int:
    """Return the factor that turns FAISS's numbers into scores."""
    return 1 if index.metric_type == load_faiss().METRIC_INNER_PRODUCT else -1


def fetch_together(view: FlatView, queries: Vectors, count: int) -> tuple[Any, Any]:
    """Return scores and places ``[n, count]``, best first, rounded as a matrix product rounds."""
    parts = list[tuple[Any, Any]]()
    width = max(BLOCK_SCORES // len(queries), 2 * count * GROUP)
    vectors, products = view.vectors(), _Products(queries)
    # Infinities and NaN are settled afterwards, by a search alone.
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, view.size, width):
            ranks = products.of(vectors[start : start + width])
            if view.sign < 0:
                ranks -= (_squares(vectors[start : start + width]) / 2)[:, None]
            places, best = _best(ranks, count)
            parts.append((best, places + start))
        ranks, places = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
        if view.sign < 0:
            ranks = 2 * ranks - np.square(queries).sum(axis=1)[:, None]
    order = np.argsort(-ranks, axis=1)[:, :count]
    return np.take_along_axis(ranks, order, 1), np.take_along_axis(places, order, 1)


class _Products:
    """Inner products with some queries, by FAISS's own BLAS.

    It computes on as many threads as FAISS is set to in the calling thread; NumPy's has one setting
    for the whole process, and takes the cores that the callers need.
    """

    def __init__(self, queries: Vectors) -> None:
        self._faiss = load_faiss()
        self._count = len(queries)
        self._transform = self._faiss.LinearTransform(queries.shape[1], self._count, False)
        self._faiss.copy_array_to_vector(queries.ravel(), self._transform.A)
        self._transform.is_trained = True

    def of(self, vectors: Vectors) -> Any:
        """Return the products ``[m, n]``, float32, of vectors ``[m, d]``."""
        products = np.empty((len(vectors), self._count), dtype=np.float32)
        pointers = map(self._faiss.swig_ptr, (vectors, products))
        self._transform.apply_noalloc(len(vectors), *pointers)
        return products


def _best(ranks: Any, count: int) -> tuple[Any, Any]:
    """Return the rows of the highest ranks of each column, or all, in any order, and the ranks.

    They lie in the ``count`` groups of rows with the highest maxima, so few are ever sorted.

    Args:
        ranks: ``[m, n]``.
        count: how many are wanted.

    Returns:
        Rows and ranks, both ``[n, count]``.
    """
    m, n = ranks.shape
    groups = m // GROUP
    if groups <= count:
        few = np.ascontiguousarray(ranks.T)
        rows = np.broadcast_to(np.arange(m), (n, m))
    else:
        maxima = ranks[: groups * GROUP].reshape(groups, GROUP, n).max(axis=1).T
        highest = np.argpartition(maxima, groups - count, axis=1)[:, groups - count :]
        rows = (highest[:, :, None] * GROUP + np.arange(GROUP)).reshape(n, -1)
        rest = np.broadcast_to(np.arange(groups * GROUP, m), (n, m - groups * GROUP))
        rows = np.concatenate([rows, rest], axis=1)
        few = ranks[rows, np.arange(n)[:, None]]
    if few.shape[1] <= count:
        return rows, few
    chosen = np.argpartition(few, few.shape[1] - count, axis=1)[:, few.shape[1] - count :]
    return np.take_along_axis(rows, chosen, 1), np.take_along_axis(few, chosen, 1)


def settled(
    view: FlatView, queries: Vectors, counts: Any, scores: Any, places: Any
) -> tuple[Any, Any, Any]:
    """Return the hits of a product rounded as in single searches, and the queries that they settle.

    A query is not settled if rounding may have kept a vector from being fetched that is nearer than
    the last of ``counts [n]``, or if there are ties.

    Returns:
        Scores and places ``[n, m]``, best first, and whether they are settled, ``[n]``.
    """
    exact = _measured(view, queries, places)
    order = np.argsort(-exact, axis=1, kind="stable")
    ranked = np.take_along_axis(exact, order, 1)
    kth = np.take_along_axis(ranked, counts[:, None] - 1, 1)[:, 0]
    # Also of NaN and infinities this says no.
    with np.errstate(over="ignore", invalid="ignore"):
        is_clear = scores[:, -1] < kth - _rounding(view, queries, kth)
    is_tied = (ranked[:, :-1] == ranked[:, 1:]) & (
        np.arange(MARGIN + counts.max() - 1) < counts[:, None]
    )
    return ranked, np.take_along_axis(places, order, 1), is_clear & ~is_tied.any(axis=1)


def _measured(view: FlatView, queries: Vectors, places: Any) -> Any:
    """Return scores ``[n, m]`` of the vectors at these places, as single searches have them."""
    faiss = load_faiss()
    numbers = np.empty(places.shape, dtype=np.float32)
    places = np.ascontiguousarray(places, dtype=np.int64)
    pointers = map(faiss.swig_ptr, (numbers, places))
    view.index.compute_distance_subset(
        len(queries), faiss.swig_ptr(queries), places.shape[1], *pointers
    )
    return numbers * view.sign


def _rounding(view: FlatView, queries: Vectors, kth: Any) -> Any:
    """Return how far a product's score may be off of a vector that is nearer than the ``k``-th.

    Of a dot product of ``d`` numbers in float32, in whatever order, the error is at most ``d``
    roundings of the product of the lengths; both ways of measuring have it. A vector that is nearer
    than the ``k``-th is no longer than the query and that distance together.
    """
    lengths = np.linalg.norm(queries, axis=1)
    per_length = 2 * (view.dimension + 4) * UNIT_ROUNDOFF
    if view.sign > 0:
        return per_length * lengths * _longest(view)
    return per_length * (2 * lengths + np.sqrt(np.abs(kth))) ** 2


def _longest(view: FlatView) -> float:
    return float(_squares(view.vectors()).max()) ** 0.5


def _squares(vectors: Vectors) -> Any:
    """Return the squared lengths ``[m]``, float32, of vectors ``[m, d]``."""
    faiss = load_faiss()
    squares = np.empty(len(vectors), dtype=np.float32)
    pointers = map(faiss.swig_ptr, (squares, vectors))
    faiss.fvec_norms_L2sqr(*pointers, vectors.shape[1], len(vectors))
    return squares

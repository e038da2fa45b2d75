"""Keep the pairs that may still be among a query's nearest, and settle them exactly.

Codes leave a few hundred candidates for each query. Their float32 inner products leave little more
than ``k``, and those get the float64 score of ``nearest.py``, which decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from rag_accel.engines.retrieval.checks import Vectors
from rag_accel.engines.retrieval.documents import Labels
from rag_accel.engines.retrieval.nearest import MAX_RESCORED, ExactScores, exact_scores
from rag_accel.engines.retrieval.scan.certificate import Bounds, Certificate, CodedQueries
from rag_accel.engines.retrieval.scan.codes import ClusterCodes, Float32s, Float64s

Fetch = Callable[[Labels], Vectors]
"""Returns the vectors ``[n, dim], float32``, C-contiguous, of ``n`` labels, each as encoded."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Hold pairs of a query and a code row, with bounds of their score; each pair once."""

    query: Labels
    row: Labels
    lower: Float64s
    upper: Float64s

    def __len__(self) -> int:
        return len(self.query)

    def take(self, chosen: npt.NDArray[np.generic]) -> Candidates:
        """Return the pairs of a mask or of positions."""
        return Candidates(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def bounded(self, bounds: Bounds) -> Candidates:
        """Return the same pairs with other bounds."""
        return Candidates(self.query, self.row, bounds.lower, bounds.upper)


_NOBODY: Labels = np.empty(0, dtype=np.int64)
_NOTHING: Float64s = np.empty(0, dtype=np.float64)
NO_CANDIDATES = Candidates(_NOBODY, _NOBODY, _NOTHING, _NOTHING)


def joined(parts: list[Candidates]) -> Candidates:
    """Return the pairs of all parts."""
    return Candidates(
        *(
            np.concatenate([getattr(part, field.name) for part in (NO_CANDIDATES, *parts)])
            for field in fields(Candidates)
        )
    )


@dataclass(frozen=True, slots=True)
class Settler:
    """Find each query's nearest rows among candidates.

    ``vectors`` are those that were encoded, or what fetches them by label.
    ``reached`` ``[m], float64`` is changed: it rises to a score that ``limits[i]`` rows of query
    ``i`` are known to reach. A number once written stays right, so readers need no lock.
    """

    codes: ClusterCodes
    vectors: Vectors | Fetch
    queries: Vectors
    coded: CodedQueries
    certificate: Certificate
    limits: Labels
    reached: Float64s

    def narrowed(self, candidates: Candidates) -> Candidates:
        """Raise ``reached`` by what these pairs are sure to score; return those still in question.

        Sorted by query.
        """
        candidates = candidates.take(np.argsort(candidates.query, kind="stable"))
        edges = np.searchsorted(candidates.query, np.arange(len(self.limits) + 1))
        for query in np.flatnonzero(np.diff(edges) >= self.limits).tolist():
            limit = int(self.limits[query])
            if limit:
                lower = candidates.lower[edges[query] : edges[query + 1]]
                least = float(np.partition(lower, len(lower) - limit)[len(lower) - limit])
                self.reached[query] = max(self.reached[query], least)
        return candidates.take(candidates.upper >= self.reached[candidates.query])

    def settled(self, candidates: Candidates) -> Candidates:
        """Return each query's ``limits[i]`` nearest of its candidates, sorted by query and rank.

        Both bounds are then the exact score. Ties are won by the lower label.
        """
        candidates = self.narrowed(candidates)
        candidates = self.narrowed(candidates.bounded(self._float_bounds(candidates)))
        scores = self._exact(candidates)
        candidates = candidates.bounded(Bounds(scores, scores))
        order = np.lexsort((self.labels(candidates), -scores, candidates.query))
        candidates = candidates.take(order)
        begins = np.searchsorted(candidates.query, candidates.query)
        rank = np.arange(len(candidates)) - begins
        return candidates.take(rank < self.limits[candidates.query])

    def labels(self, candidates: Candidates) -> Labels:
        """Return the label of each pair's row."""
        return self.codes.labels[self._sources(candidates)]

    def _sources(self, candidates: Candidates) -> Labels:
        return candidates.row + self.codes.shifts[self.codes.places_of(candidates.row)]

    def _fetched(self, sources: Labels) -> Vectors:
        if callable(self.vectors):
            return self.vectors(self.codes.labels[sources])
        return self.vectors[sources]

    def _float_bounds(self, candidates: Candidates) -> Bounds:
        sources = self._sources(candidates)
        products: Float32s = np.empty(len(candidates), dtype=np.float32)
        for part in _parts(len(candidates), self.queries.shape[1]):
            vectors = self._fetched(sources[part])
            # Not a matrix product: NumPy's BLAS has threads of its own that nobody granted.
            np.einsum("ij,ij->i", vectors, self.queries[candidates.query[part]], out=products[part])
        squares = self.codes.rows.squares[candidates.row]
        return self.certificate.of_floats(products, squares, self.coded, candidates.query)

    def _exact(self, candidates: Candidates) -> ExactScores:
        sources = self._sources(candidates)
        scores = np.empty(len(candidates))
        for part in _parts(len(candidates), self.queries.shape[1]):
            queries = self.queries[candidates.query[part]]
            vectors = self._fetched(sources[part])
            scores[part] = exact_scores(self.certificate.metric, queries, vectors)
        return scores


def _parts(count: int, dimension: int) -> list[slice]:
    step = max(1, MAX_RESCORED // dimension)
    return [slice(start, start + step) for start in range(0, count, step)]

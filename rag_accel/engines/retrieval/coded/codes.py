"""8-bit codes of clustered vectors, and a proof of which vectors can be among the nearest.

FAISS's scalar quantiser keeps one byte for each number of ``x - c``, the vector less its cluster's
centroid; what a code shows, ``x^``, lies within a *measured* ``e`` of ``x``. So a scan reads a
quarter of the memory, and its scores bound the true ones. Write ``q`` for the query, ``Q`` for its
length, ``u = 2**-24`` for the unit roundoff of float32, ``d`` for the dimension, ``B`` for the
length of what the decoder adds and multiplies at most, and ``C`` for that of the longest centroid.

**Inner product.** ``|q.x - q.x^| <= e Q``. The score is ``q.c`` plus ``q.(x^ - c)``, both sums of
``d`` float32 products in some order, of numbers decoded with a few roundings each: off by at most
``(d + 32) u Q (B + C)``, and ``2 d`` smallest normal numbers for what underflows.

**L2.** ``||q - x| - |q - x^|| <= e``. The score is minus the squared length of a difference that is
computed with an error of at most ``8 u (Q + B + C)``, squared and summed with a relative error of
``(d + 8) u``, which its square root halves; the root of ``d`` smallest normal numbers covers
squares that underflow.

``nearest.prove_nearest`` computes the exact scores of the first candidates. Candidates strictly
below the ``k``-th of them are dropped, so that ties stay; vectors that were not fetched are bounded
by the last score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.vectors.cluster_lists import ClusterLists
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors
from rag_accel.engines.retrieval.vectors.nearest import (
    Candidates,
    ExactScores,
)
from rag_accel.engines.retrieval.vectors.spec import Metric, Vectors, norms
from rag_accel.engines.retrieval.vectors.vectors import (
    SMALLEST_NORMAL,
    UNIT_ROUNDOFF,
    Scores,
    SearchScope,
)

ROUND_UP = 1 + 2.0**-40  # the bounds are a handful of float64 operations
FETCHED_PER_WANTED, FETCHED_MORE = 2, 12  # 29 of a million at most could be among the nearest 10


@dataclass(frozen=True, slots=True)
class CodedVectors:
    """The codes of one state of an index with clusters; see ``nearest.Source``.

    Args:
        vectors: the encoded vectors.
        lists: codes and labels, in the same clusters.
        error: no vector is farther from what its code shows.
        decoded: ``B`` above.
        centroid: ``C`` above.
    """

    vectors: IvfVectors
    lists: ClusterLists
    error: float
    decoded: float
    centroid: float

    def first_count(self, limit: int) -> int:
        """Return how many to fetch at first where ``limit`` are wanted."""
        return FETCHED_PER_WANTED * limit + FETCHED_MORE

    def fetch(self, queries: Vectors, count: int, scope: SearchScope) -> tuple[Scores, Labels]:
        """Scan the clusters that ``vectors`` would visit; as ``VectorIndex.fetch``."""
        visits, selector = self.vectors.visited(queries, scope), self.vectors.selector(scope)
        return self._scan(queries, count, visits.clusters, selector, visits.numbers)

    def scan(
        self, queries: Vectors, count: int, clusters: Labels, selector: Any
    ) -> tuple[Scores, Labels]:
        """Scan given clusters; as ``IvfVectors.scan``."""
        numbers = self.vectors.centroid_scores(queries, clusters)
        return self._scan(queries, count, clusters, selector, numbers)

    def _scan(
        self, queries: Vectors, count: int, clusters: Labels, selector: Any, numbers: Scores
    ) -> tuple[Scores, Labels]:
        # A distance needs the query's own difference to a centroid, an inner product its score.
        coarse = numbers if self.vectors.metric is Metric.INNER_PRODUCT else None
        sizes = self.vectors.cluster_sizes()
        return self.lists.scan(queries, count, clusters, selector, sizes, coarse)

    def candidates(self, queries: Vectors, scores: Scores, labels: Labels) -> Candidates:
        """Return upper bounds of the exact scores behind ``scores: [n, m]``."""
        with np.errstate(invalid="ignore"):  # rows that ended early are padded with infinities
            highest = self.highest(norms(queries)[:, None], scores.astype(np.float64))
        return Candidates(labels, highest[:, -1], highest)

    def highest(self, lengths: ExactScores, found: ExactScores) -> ExactScores:
        """Return upper bounds of the true scores behind ``found: [n, m]``.

        ``lengths: [n, 1]`` are those of the queries.
        """
        dimension = self.vectors.dimension
        magnitude = self.decoded + self.centroid
        if self.vectors.metric is Metric.INNER_PRODUCT:
            error = self.error * lengths
            error = error + (dimension + 32) * UNIT_ROUNDOFF * lengths * magnitude
            return found + (error + 2 * dimension * SMALLEST_NORMAL) * ROUND_UP
        relative = (dimension + 8) * UNIT_ROUNDOFF
        error = self.error + 8 * UNIT_ROUNDOFF * (lengths + magnitude)
        error = (error + np.sqrt(dimension * SMALLEST_NORMAL)) * ROUND_UP
        distance = np.sqrt(-found)
        return -np.square(np.maximum(0.0, distance * (1 - relative) - error) / ROUND_UP)

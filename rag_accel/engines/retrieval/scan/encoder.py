"""Make the codes of an IVF index a few clusters at a time, so that changes need not wait."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rag_accel.engines.retrieval.checks import Vectors
from rag_accel.engines.retrieval.documents import Labels
from rag_accel.engines.retrieval.scan.codes import (
    MAX_ENCODED,
    ClusterCodes,
    empty_rows,
    encode_part,
    maxima,
    upper_lengths,
)
from rag_accel.engines.retrieval.scan.neighbours import order_by_neighbourhood

ClusterRows = Callable[[int], tuple[Labels, Vectors]]
"""Returns the labels ``[n]`` and vectors ``[n, dim], float32`` of a cluster; both may be views."""


class ClusterEncoder:
    """Encode the clusters in the order in which they will be stored. Used by one thread.

    The clusters must be the same in every call of ``take``: whoever calls makes sure that nothing
    has changed in between. The labels are copied, in stored order, so the codes need no vectors but
    those of the candidates of a scan.

    Args:
        centroids: ``[clusters, dim], float32``; neighbours are stored beside each other.
        sizes: ``[clusters]``; how many vectors each holds.
        rows_of: gives a cluster's vectors.
    """

    def __init__(self, centroids: Vectors, sizes: Labels, rows_of: ClusterRows) -> None:
        self._rows_of = rows_of
        self._order = order_by_neighbourhood(centroids)
        self._starts = np.concatenate(([0], np.cumsum(sizes[self._order])))
        count = int(self._starts[-1])
        self._rows = empty_rows(count, centroids.shape[1])
        self._labels: Labels = np.empty(count, dtype=np.int64)
        self._next = 0

    @property
    def is_done(self) -> bool:
        """Tell whether all clusters are encoded."""
        return self._next == len(self._order)

    def take(self, count: int) -> None:
        """Encode the next clusters, at least one, until they hold ``count`` vectors together."""
        taken = 0
        while not self.is_done and taken < count:
            start, stop = self._starts[self._next : self._next + 2].tolist()
            if start < stop:
                self._encode(start, *self._rows_of(int(self._order[self._next])))
            taken += stop - start
            self._next += 1

    def codes(self) -> ClusterCodes:
        """Return the codes of all clusters, once ``is_done``."""
        assert self.is_done, "some clusters are not encoded yet"
        rows, starts, count = self._rows, self._starts, len(self._order)
        lengths = upper_lengths(rows.squares, rows.codes.shape[1])
        return ClusterCodes(
            rows=rows,
            labels=self._labels,
            starts=starts,
            places=np.argsort(self._order),
            shifts=np.zeros(count, dtype=np.int64),
            max_errors=maxima(rows.error_norms, starts),
            max_lengths=maxima(np.maximum(rows.code_norms, lengths), starts),
        )

    def _encode(self, start: int, labels: Labels, vectors: Vectors) -> None:
        self._labels[start : start + len(labels)] = labels
        step = max(1, MAX_ENCODED // vectors.shape[1])
        for row in range(0, len(vectors), step):
            part = vectors[row : row + step]
            encode_part(part, self._rows, slice(start + row, start + row + len(part)))

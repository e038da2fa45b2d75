"""Order points so that near ones tend to stand beside each other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def order_by_neighbourhood(points: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Return a permutation of the rows of ``points [n, dim]``; near rows come near each other.

    Halves the points again and again across the line between two that lie far apart, which takes
    ``O(n log n * dim)``. The same points give the same order in every process.
    """
    order = np.arange(len(points), dtype=np.int64)
    waiting = [(0, len(points))]
    while waiting:
        start, stop = waiting.pop()
        if stop - start <= 2:
            continue
        members = order[start:stop]
        along = _positions(points[members])
        order[start:stop] = members[np.argsort(along, kind="stable")]
        middle = (start + stop) // 2
        waiting += [(start, middle), (middle, stop)]
    return order


def _positions(points: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return where each point lies along the line from one far point to another."""
    centred = points.astype(np.float64) - points.mean(axis=0, dtype=np.float64)
    first = centred[np.argmax(np.einsum("ij,ij->i", centred, centred))]
    apart = centred - first
    second = centred[np.argmax(np.einsum("ij,ij->i", apart, apart))]
    return np.einsum("ij,j->i", centred, second - first)

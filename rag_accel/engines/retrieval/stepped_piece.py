"""Choose which clusters are read next: the oldest search decides, sizes and riders bound it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_accel.engines.retrieval.documents import Labels


@dataclass(frozen=True, slots=True)
class PieceLimits:
    """Bound one piece, in vectors.

    Args:
        least_work: comparisons below which a piece is not worth its overhead.
        most_work: comparisons it should not exceed, all searches together.
        most_read: different vectors it should not exceed beyond ``least_work``, so that they are
            still in the cache when the next search compares with them.
        is_needed: whether one cluster is chosen even if none fits.
    """

    least_work: float
    most_work: float = np.inf
    most_read: float = np.inf
    is_needed: bool = True


def choose_clusters(
    rests: Iterable[Labels], sizes: Labels, demand: npt.NDArray[Any], limits: PieceLimits
) -> Labels:
    """Return the clusters of the next piece; none if none fits and none is needed.

    Args:
        rests: for each search, oldest first, the clusters it has still to read, nearest first.
            Younger searches are asked only while the piece is smaller than ``least_work``.
        sizes: vectors in each cluster, ``[num_clusters]``.
        demand: how many searches want each cluster, ``[num_clusters]``.
        limits: when to stop.
    """
    chosen: list[Labels] = []
    is_chosen = np.zeros(len(sizes), dtype=bool)
    work = read = 0.0
    most_work = max(limits.most_work, limits.least_work)
    for rest in rests:
        new = rest[~is_chosen[rest]] if chosen else rest
        size = sizes[new]
        works = work + (size * demand[new]).cumsum()
        reads = read + size.cumsum()
        fits = (works <= limits.least_work) | (works <= most_work) & (reads <= limits.most_read)
        count = int(np.count_nonzero(fits))  # both sums rise: those that fit come first
        count = max(count, int(limits.is_needed and not chosen))
        if count:
            chosen.append(new[:count])
            is_chosen[new[:count]] = True
            work, read = float(works[count - 1]), float(reads[count - 1])
        if count < len(new) or work >= limits.least_work:
            break
    return np.concatenate(chosen) if chosen else np.empty(0, dtype=np.int64)

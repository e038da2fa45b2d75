"""Which clusters are read next, as tables of sizes, riders and bounds."""

from __future__ import annotations

import numpy as np
import pytest

from rag_accel.engines.retrieval.stepped.scan import PieceLimits, choose_clusters

SIZES = [10, 20, 30, 40, 0, 1000]


@pytest.mark.parametrize(
    ("rests", "limits", "chosen"),
    [
        # the oldest alone, by its own order, up to the bound
        ([[2, 0, 1]], PieceLimits(0, 40), [2, 0]),
        ([[2, 0, 1]], PieceLimits(0, 39), [2]),
        ([[2, 0, 1]], PieceLimits(0), [2, 0, 1]),
        # never less than one cluster, however large
        ([[5, 0]], PieceLimits(0, 1), [5]),
        ([[5, 0]], PieceLimits(0, 0), [5]),
        # ... unless none is needed
        ([[5, 0]], PieceLimits(0, 5, is_needed=False), []),
        ([[0, 5]], PieceLimits(0, 10, is_needed=False), [0]),
        # an empty cluster costs nothing
        ([[0, 4, 1]], PieceLimits(0, 10), [0, 4]),
        # who rides along counts: cluster 1 is wanted by two
        ([[0, 1, 2], [1]], PieceLimits(0, 50), [0, 1]),
        ([[0, 1, 2], [1]], PieceLimits(0, 49), [0]),
        # a younger one is asked only while the piece is too small to be worth it
        ([[0], [1, 2], [3]], PieceLimits(10), [0]),
        ([[0], [1, 2], [3]], PieceLimits(11), [0, 1, 2]),
        ([[0], [1, 2], [3]], PieceLimits(61), [0, 1, 2, 3]),
        ([[0], [1, 2], [3]], PieceLimits(61, 35), [0, 1, 2]),
        # what the older one has chosen already is not read twice
        ([[0, 1], [1, 0, 2]], PieceLimits(1000), [0, 1, 2]),
        ([[0], [0], [2]], PieceLimits(1000), [0, 2]),
        # a piece smaller than is worth it grows beyond the time it should take
        ([[0, 1, 2]], PieceLimits(30, 5), [0, 1]),
        # different vectors are bounded too, but not below what is worth it
        ([[0, 1, 2], [0, 1, 2]], PieceLimits(0, 1000, 30), [0, 1]),
        ([[0, 1, 2], [0, 1, 2]], PieceLimits(120, 1000, 5), [0, 1, 2]),
    ],
)
def test_clusters_are_chosen_by_age_order_and_cost(
    rests: list[list[int]], limits: PieceLimits, chosen: list[int]
) -> None:
    orders = [np.asarray(rest, dtype=np.int64) for rest in rests]
    demand = np.zeros(len(SIZES), dtype=np.int64)
    for order in orders:
        demand[order] += 1
    found = choose_clusters(orders, np.asarray(SIZES), demand, limits)
    assert found.tolist() == chosen

"""The choice of the clusters that lie in the faster memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rag_accel.engines.retrieval.vectors.hot_clusters import EXCHANGED_EVERY, HotClusters


def reads(*counts: int) -> np.ndarray:
    """Return a call that reads each cluster so many times."""
    return np.repeat(np.arange(len(counts)), counts)


def exchanged(hot: HotClusters, *counts: int, sizes: list[int]) -> tuple[list[int], list[int]]:
    hot.note(reads(*counts))
    taken, gone = hot.exchange(np.array(sizes))
    hot.is_hot[gone] = False
    hot.is_hot[taken] = True
    return taken, gone


def test_the_hottest_that_fit_are_taken_and_others_only_where_they_fit_too() -> None:
    hot = HotClusters(4, 10)
    assert exchanged(hot, 5, 9, 7, 0, sizes=[3, 6, 5, 1]) == ([1, 0], [])


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((100, 0, 110), ([], [])),  # by chance
        ((100, 0, 400), ([2], [0])),
        ((1, 0, 4), ([], [])),  # few reads tell nothing
        ((0, 0, 1), ([2], [0])),
    ],
)
def test_a_cluster_takes_anothers_place_only_beyond_chance(
    counts: tuple[int, ...], expected: tuple[list[int], list[int]]
) -> None:
    hot = HotClusters(3, 10)
    hot.is_hot[0] = True
    assert exchanged(hot, *counts, sizes=[10, 10, 10]) == expected


def test_an_exchange_fills_a_part_of_a_full_memory() -> None:
    hot = HotClusters(32, 16)
    assert exchanged(hot, *[1] * 16, *[0] * 16, sizes=[1] * 32)[0] == [*range(16)]
    taken, gone = exchanged(hot, *[0] * 16, *[100] * 16, sizes=[1] * 32)
    assert len(taken) == len(gone) == 2


def test_old_reads_count_less() -> None:
    hot = HotClusters(2, 1)
    exchanged(hot, 100, 0, sizes=[1, 1])
    for _ in range(60):
        exchanged(hot, 0, 0, sizes=[1, 1])
    assert exchanged(hot, 0, 3, sizes=[1, 1]) == ([1], [0])


def test_an_exchange_is_due_after_so_many_calls() -> None:
    hot = HotClusters(1, 1)
    due = [hot.note(reads(1)) for _ in range(2 * EXCHANGED_EVERY)]
    assert [place for place, is_due in enumerate(due, 1) if is_due] == [
        EXCHANGED_EVERY,
        2 * EXCHANGED_EVERY,
    ]


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 60),
    st.lists(st.integers(0, 20), min_size=8, max_size=8),
    st.lists(st.lists(st.integers(0, 50), min_size=8, max_size=8), max_size=6),
)
def test_what_lies_in_memory_never_exceeds_its_bytes(
    hot_bytes: int, sizes: list[int], calls: list[list[int]]
) -> None:
    hot = HotClusters(8, hot_bytes)
    for counts in calls:
        taken, gone = exchanged(hot, *counts, sizes=sizes)
        assert not {*taken} & {*gone}
        assert sum(np.array(sizes)[hot.is_hot]) <= hot_bytes

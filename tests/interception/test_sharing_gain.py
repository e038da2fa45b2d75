"""How searches of a store are made, by what earlier ones took."""

from __future__ import annotations

import pytest

from rag_accel.recognition.sharing_gain import TRY_OTHER, SharingGain


def made(
    gain: SharingGain, seconds: dict[bool, float], epochs: int, running: int = 8
) -> list[bool]:
    """Make epochs of searches that take so long shared and alone; return which of them shared."""
    ways = list[bool]()
    for _ in range(epochs):
        epoch = gain.epoch("table", 8)
        while gain.epoch("table", 8) is epoch:
            gain.note("table", 8, epoch, seconds[epoch.shares])
        ways.append(epoch.shares)
    return ways


@pytest.mark.parametrize(
    ("shared_s", "alone_s", "shares"),
    [(0.010, 0.030, True), (0.030, 0.010, False), (0.0101, 0.010, True)],
)
def test_the_faster_way_is_taken_after_both_were_measured(
    shared_s: float, alone_s: float, shares: bool
) -> None:
    assert made(SharingGain(), {True: shared_s, False: alone_s}, 6) == [
        True,
        False,
        *[shares] * 4,
    ]


def test_the_slower_way_is_measured_again_and_taken_where_it_has_become_faster() -> None:
    gain = SharingGain()
    assert made(gain, {True: 0.01, False: 0.03}, TRY_OTHER)[-1]
    assert made(gain, {True: 0.03, False: 0.01}, 4) == [False, True, False, False]


def test_each_kind_and_number_of_callers_learns_by_itself() -> None:
    gain = SharingGain()
    made(gain, {True: 0.03, False: 0.01}, 3)
    assert not gain.epoch("table", 8).shares
    assert gain.epoch("table", 2).shares
    assert gain.epoch("other", 8).shares


def test_a_search_that_ends_after_its_epoch_is_not_counted() -> None:
    gain = SharingGain()
    late = gain.epoch("table", 8)
    made(gain, {True: 0.01, False: 0.03}, 1)
    gain.note("table", 8, late, 100.0)
    made(gain, {True: 0.01, False: 0.03}, 1)
    assert gain.epoch("table", 8).shares

"""How searches of a store are made, by what earlier ones took."""

from __future__ import annotations

import pytest

from rag_accel.recognition.sharing_gain import TRY_OTHER, SharingGain


def made(gain: SharingGain, shared_s: float, alone_s: float, epochs: int, at_once: int = 8) -> str:
    """Make epochs of searches that take so long; return how: ``s`` shared, ``a`` alone."""
    ways = ""
    for _ in range(epochs):
        epoch = gain.epoch("table")
        while gain.epoch("table") is epoch:
            gain.note("table", epoch, shared_s if epoch.shares else alone_s, at_once)
        ways += "s" if epoch.shares else "a"
    return ways


@pytest.mark.parametrize(
    ("shared_s", "alone_s", "ways"),
    [(0.010, 0.030, "sassss"), (0.030, 0.010, "saaaaa"), (0.0101, 0.010, "sassss")],
)
def test_the_faster_way_is_taken_after_both_were_measured(
    shared_s: float, alone_s: float, ways: str
) -> None:
    assert made(SharingGain(), shared_s, alone_s, 6) == ways


def test_the_slower_way_is_measured_again_and_taken_where_it_has_become_faster() -> None:
    gain = SharingGain()
    assert made(gain, 0.01, 0.03, TRY_OTHER + 1)[-2:] == "sa"
    assert made(gain, 0.01, 0.03, TRY_OTHER - 1) == "s" * (TRY_OTHER - 1)
    assert made(gain, 0.03, 0.01, 4) == "asaa"


def test_both_ways_are_measured_again_under_another_load() -> None:
    gain = SharingGain()
    assert made(gain, 0.01, 0.03, 4, at_once=64) == "sass"
    assert made(gain, 0.03, 0.01, 4, at_once=4) == "saaa"


def test_the_first_searches_of_an_epoch_run_with_those_of_the_last_and_do_not_count() -> None:
    gain = SharingGain()
    made(gain, 0.02, 0.01, 1, at_once=50)
    alone = gain.epoch("table")
    for _ in range(50):  # they find no queue
        gain.note("table", alone, 0.001, 50)
    for _ in range(100):
        gain.note("table", alone, 0.03, 50)
    assert gain.epoch("table").shares


def test_a_search_that_ends_after_its_epoch_is_not_counted() -> None:
    gain = SharingGain()
    late = gain.epoch("table")
    made(gain, 0.01, 0.03, 2)
    gain.note("table", late, 100.0, 8)
    assert made(gain, 0.01, 0.03, 2) == "ss"


def test_each_kind_learns_by_itself() -> None:
    gain = SharingGain()
    made(gain, 0.03, 0.01, 3)
    assert not gain.epoch("table").shares
    assert gain.epoch("other").shares

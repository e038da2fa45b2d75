"""How searches of a store are made, by what earlier ones took."""

from __future__ import annotations

from itertools import groupby

import pytest

from rag_accel.adoption.remote_stores import EPOCH, ROUNDS, TRY_OTHER, SharingGain


class Searches:
    """Searches of callers that each search again as soon as they have an answer."""

    def __init__(self) -> None:
        self.gain = SharingGain()
        self.now = 0.0

    def make(self, shared_s: float, alone_s: float, count: int, callers: int = 8) -> str:
        """Make searches that take so long; return how, as one letter for those in a row."""
        self.gain.resume(self.now)
        ways = ""
        for _ in range(count):
            shares = self.gain.shares()
            self.now += (shared_s if shares else alone_s) / callers
            self.gain.note(callers, self.now)
            ways += "s" if shares else "a"
        return "".join(way for way, _ in groupby(ways))


@pytest.mark.parametrize(
    ("shared_s", "alone_s", "ways"),
    [(0.010, 0.030, "sas"), (0.030, 0.010, "sa"), (0.0101, 0.010, "sas")],
)
def test_the_faster_way_is_taken_after_both_were_measured(
    shared_s: float, alone_s: float, ways: str
) -> None:
    assert Searches().make(shared_s, alone_s, 1000) == ways


def test_the_slower_way_is_measured_again_and_taken_where_it_has_become_faster() -> None:
    searches, epoch = Searches(), 8 + ROUNDS * 8
    assert searches.make(0.01, 0.03, EPOCH + epoch * (TRY_OTHER + 1)) == "sasas"
    assert searches.make(0.03, 0.01, epoch * (TRY_OTHER + 10)) == "sa"


def test_both_ways_are_measured_again_under_another_load() -> None:
    searches = Searches()
    assert searches.make(0.01, 0.03, 2000, callers=64) == "sas"
    assert searches.make(0.03, 0.01, 400, callers=4) == "sa"


def test_the_first_that_end_in_an_epoch_began_with_the_last_and_do_not_count() -> None:
    searches, gain = Searches(), SharingGain()
    searches.gain = gain
    searches.make(0.02, 0.02, EPOCH, callers=50)
    for _ in range(50):  # they find no queue, and end at once
        gain.note(50, searches.now)
    assert searches.make(0.02, 0.03, 1000, callers=50) == "as"


def test_the_time_without_searches_does_not_count() -> None:
    searches = Searches()
    searches.make(0.02, 0.01, EPOCH + 20)
    searches.now += 1000.0
    assert searches.make(0.02, 0.01, 1000) == "a"

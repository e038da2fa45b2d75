"""Which way crowds go is decided by what they were seen to cost."""

from __future__ import annotations

from rag_accel.engines.retrieval.search_ways import TRIALS, Way, WayChooser

BOTH = [Way.EACH, Way.CODED]


def _run(crossover: WayChooser, each: float, coded: float, crowds: int) -> list[Way]:
    """Search crowds that cost this much either way; return the ways they went."""
    costs = {Way.EACH: each, Way.CODED: coded}
    ways: list[Way] = []
    for _ in range(crowds):
        ways.append(crossover.choose("kind", 3, BOTH))
        crossover.observe("kind", 3, ways[-1], costs[ways[-1]])
    return ways


def test_both_ways_are_tried_in_turn() -> None:
    ways = _run(WayChooser(), 1.0, 5.0, 2 * (TRIALS + 1))
    assert ways == [Way.EACH, Way.CODED] * (TRIALS + 1)


def test_the_faster_way_stays() -> None:
    for each, coded, faster in ((1.0, 0.5, Way.CODED), (0.5, 1.0, Way.EACH)):
        assert set(_run(WayChooser(), each, coded, 100)[2 * (TRIALS + 1) :]) == {faster}


def test_a_small_difference_changes_nothing() -> None:
    crossover = WayChooser()
    assert _run(crossover, 1.0, 0.95, 50)[-1] is Way.EACH
    crossover = WayChooser()
    assert _run(crossover, 1.0, 0.5, 50)[-1] is Way.CODED
    assert set(_run(crossover, 1.0, 1.05, 50)) == {Way.CODED}


def test_a_way_that_became_clearly_slower_is_left() -> None:
    crossover = WayChooser()
    assert _run(crossover, 1.0, 0.5, 50)[-1] is Way.CODED
    assert _run(crossover, 1.0, 1.5, 50)[-1] is Way.EACH


def test_the_first_time_of_a_way_does_not_count() -> None:
    crossover = WayChooser()
    crossover.observe("kind", 3, Way.CODED, 1000.0)
    assert _run(crossover, 1.0, 0.5, 50)[-1] is Way.CODED


def test_kinds_are_learnt_apart() -> None:
    crossover = WayChooser()
    _run(crossover, 1.0, 0.5, 50)
    assert crossover.choose("kind", 3, BOTH) is Way.CODED
    assert crossover.choose("other kind", 3, BOTH) is Way.EACH


def test_a_larger_crowd_goes_by_codes_untried_where_a_smaller_one_was_found_to() -> None:
    crossover = WayChooser()
    _run(crossover, 1.0, 0.5, 50)
    assert [crossover.choose("kind", 7, BOTH) for _ in range(3)] == [Way.CODED] * 3
    assert crossover.choose("kind", 2, BOTH) is Way.EACH
    crossover.observe("kind", 2, Way.EACH, 1.0)
    assert crossover.choose("kind", 2, BOTH) is Way.CODED  # its own trials go on


def test_a_larger_crowd_tries_for_itself_where_a_smaller_one_goes_without_codes() -> None:
    crossover = WayChooser()
    _run(crossover, 0.5, 1.0, 50)
    assert crossover.choose("kind", 7, BOTH) is Way.EACH
    crossover.observe("kind", 7, Way.EACH, 1.0)
    assert crossover.choose("kind", 7, BOTH) is Way.CODED


def test_a_way_that_is_not_there_is_not_taken() -> None:
    crossover = WayChooser()
    _run(crossover, 1.0, 0.5, 50)
    for size in (3, 7):
        assert crossover.choose("kind", size, [Way.EACH]) is Way.EACH

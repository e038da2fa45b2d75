"""Which way crowds go is decided by what they were seen to cost."""

from __future__ import annotations

from rag_accel.engines.retrieval.crossover import TRIALS, Crossover, Way

BOTH = [Way.EACH, Way.SHARED]
ALL = list(Way)


def _run(crossover: Crossover, each: float, shared: float, crowds: int) -> list[Way]:
    """Search crowds that cost this much either way; return the ways they went."""
    costs = {Way.EACH: each, Way.SHARED: shared}
    ways: list[Way] = []
    for _ in range(crowds):
        ways.append(crossover.choose("kind", 3, BOTH))
        crossover.observe("kind", 3, ways[-1], costs[ways[-1]])
    return ways


def test_both_ways_are_tried_in_turn() -> None:
    ways = _run(Crossover(), 1.0, 5.0, 2 * (TRIALS + 1))
    assert ways == [Way.EACH, Way.SHARED] * (TRIALS + 1)


def test_the_faster_way_stays() -> None:
    for each, shared, faster in ((1.0, 0.5, Way.SHARED), (0.5, 1.0, Way.EACH)):
        assert set(_run(Crossover(), each, shared, 100)[2 * (TRIALS + 1) :]) == {faster}


def test_a_small_difference_changes_nothing() -> None:
    crossover = Crossover()
    assert _run(crossover, 1.0, 0.95, 50)[-1] is Way.EACH
    crossover = Crossover()
    assert _run(crossover, 1.0, 0.5, 50)[-1] is Way.SHARED
    assert set(_run(crossover, 1.0, 1.05, 50)) == {Way.SHARED}


def test_a_way_that_became_clearly_slower_is_left() -> None:
    crossover = Crossover()
    assert _run(crossover, 1.0, 0.5, 50)[-1] is Way.SHARED
    assert _run(crossover, 1.0, 1.5, 50)[-1] is Way.EACH


def test_the_first_time_of_a_way_does_not_count() -> None:
    crossover = Crossover()
    crossover.observe("kind", 3, Way.SHARED, 1000.0)
    assert _run(crossover, 1.0, 0.5, 50)[-1] is Way.SHARED


def test_kinds_are_learnt_apart() -> None:
    crossover = Crossover()
    _run(crossover, 1.0, 0.5, 50)
    assert crossover.choose("kind", 3, BOTH) is Way.SHARED
    assert crossover.choose("other kind", 3, BOTH) is Way.EACH


def test_a_way_that_comes_later_is_tried_without_trying_the_others_again() -> None:
    crossover = Crossover()
    _learn(crossover, 7, {Way.EACH: 1.0, Way.CODED: 0.5})
    ways = _learn(crossover, 7, {Way.EACH: 1.0, Way.CODED: 0.5, Way.SHARED: 0.1})
    assert set(ways) == {Way.SHARED}


def test_a_larger_crowd_shares_untried_where_a_smaller_one_was_found_to() -> None:
    crossover = Crossover()
    _run(crossover, 1.0, 0.5, 50)
    assert crossover.choose("kind", 7, BOTH) is Way.SHARED
    assert crossover.choose("kind", 2, BOTH) is Way.EACH
    crossover.observe("kind", 2, Way.EACH, 1.0)
    assert crossover.choose("kind", 2, BOTH) is Way.SHARED  # its own trials go on


def test_a_smaller_crowd_goes_apart_untried_where_a_larger_one_was_found_to() -> None:
    crossover = Crossover()
    _run(crossover, 0.5, 1.0, 50)
    assert [crossover.choose("kind", 2, BOTH) for _ in range(3)] == [Way.EACH] * 3
    crossover.observe("kind", 2, Way.EACH, 1.0)
    assert crossover.choose("kind", 2, BOTH) is Way.EACH
    assert crossover.choose("kind", 7, BOTH) is Way.EACH
    crossover.observe("kind", 7, Way.EACH, 1.0)
    assert crossover.choose("kind", 7, BOTH) is Way.SHARED


def _learn(crossover: Crossover, size: int, costs: dict[Way, float], crowds: int = 20) -> list[Way]:
    """Search crowds of one size, which may go the ways that have a cost; return the ways."""
    ways: list[Way] = []
    for _ in range(crowds):
        ways.append(crossover.choose("kind", size, list(costs)))
        crossover.observe("kind", size, ways[-1], costs[ways[-1]])
    return ways


def test_of_three_ways_the_fastest_stays() -> None:
    for fastest in ALL:
        costs = {way: 0.5 if way is fastest else 1.0 for way in ALL}
        ways = _learn(Crossover(), 3, costs)
        assert ways[: 3 * (TRIALS + 1)] == ALL * (TRIALS + 1)
        assert set(ways[3 * (TRIALS + 1) :]) == {fastest}


def test_a_way_that_is_not_there_is_not_taken() -> None:
    crossover = Crossover()
    _learn(crossover, 3, {Way.EACH: 1.0, Way.CODED: 0.5, Way.SHARED: 0.1})
    assert crossover.choose("kind", 3, [Way.EACH]) is Way.EACH
    assert crossover.choose("kind", 3, [Way.EACH, Way.CODED]) is not Way.SHARED


def test_large_crowds_do_not_try_what_small_ones_found_worse() -> None:
    crossover = Crossover()
    _learn(crossover, 1, {Way.EACH: 1.0, Way.CODED: 0.5})
    ways = _learn(crossover, 7, {Way.EACH: 1.0, Way.CODED: 0.5, Way.SHARED: 0.4})
    assert Way.EACH not in ways
    assert set(ways[2 * (TRIALS + 1) :]) == {Way.SHARED}
    assert crossover.choose("kind", 5, ALL) is Way.CODED, "SHARED may pay from here on or not"


def test_a_size_that_did_not_try_the_slowest_way_settles_nevertheless() -> None:
    crossover = Crossover()
    _learn(crossover, 1, {Way.EACH: 1.0, Way.CODED: 0.5})
    ways = _learn(crossover, 7, {Way.EACH: 1.0, Way.CODED: 0.3, Way.SHARED: 0.4})
    assert set(ways[2 * (TRIALS + 1) :]) == {Way.CODED}
    assert _learn(crossover, 5, {Way.EACH: 1.0, Way.CODED: 0.5, Way.SHARED: 0.1}, 1) == [Way.CODED]

"""Which way crowds go is decided by what they were seen to cost."""

from __future__ import annotations

from rag_accel.engines.retrieval.crossover import TRIALS, Crossover, Way


def _run(crossover: Crossover, each: float, shared: float, crowds: int) -> list[Way]:
    """Search crowds that cost this much either way; return the ways they went."""
    costs = {Way.EACH: each, Way.SHARED: shared}
    ways: list[Way] = []
    for _ in range(crowds):
        ways.append(crossover.choose("kind", 3))
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


def test_kinds_are_learnt_apart_and_forgotten_together() -> None:
    crossover = Crossover()
    _run(crossover, 1.0, 0.5, 50)
    assert crossover.choose("kind", 3) is Way.SHARED
    assert crossover.choose("other kind", 3) is Way.EACH
    crossover.forget()
    assert crossover.choose("kind", 3) is Way.EACH


def test_a_larger_crowd_shares_untried_where_a_smaller_one_was_found_to() -> None:
    crossover = Crossover()
    _run(crossover, 1.0, 0.5, 50)
    assert crossover.choose("kind", 7) is Way.SHARED
    assert crossover.choose("kind", 2) is Way.EACH
    crossover.observe("kind", 2, Way.EACH, 1.0)
    assert crossover.choose("kind", 2) is Way.SHARED  # its own trials go on


def test_a_smaller_crowd_goes_apart_untried_where_a_larger_one_was_found_to() -> None:
    crossover = Crossover()
    _run(crossover, 0.5, 1.0, 50)
    assert [crossover.choose("kind", 2) for _ in range(3)] == [Way.EACH] * 3
    crossover.observe("kind", 2, Way.EACH, 1.0)
    assert crossover.choose("kind", 2) is Way.EACH
    assert crossover.choose("kind", 7) is Way.EACH
    crossover.observe("kind", 7, Way.EACH, 1.0)
    assert crossover.choose("kind", 7) is Way.SHARED

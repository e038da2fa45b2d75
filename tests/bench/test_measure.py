from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.measure import (
    MIN_FOR_INTERVAL,
    Estimate,
    Interval,
    Pairs,
    alternate,
    alternate_async,
    differences,
    estimate,
    median,
    median_interval,
    percentile,
    ratios,
    rotate_async,
    timed,
    timed_async,
)
from rag_accel.errors import ConfigError


def test_the_arm_that_goes_first_changes_from_turn_to_turn() -> None:
    calls: list[str] = []
    alternate(lambda _: calls.append("plain"), lambda _: calls.append("other"), repeats=3)
    assert calls == ["plain", "other", "other", "plain", "plain", "other"]


def test_values_are_paired_by_turn_whichever_arm_went_first() -> None:
    pairs = alternate(lambda turn: f"plain {turn}", lambda turn: f"other {turn}", repeats=3)
    assert pairs == Pairs(("plain 0", "plain 1", "plain 2"), ("other 0", "other 1", "other 2"))


def test_warm_up_calls_both_arms_and_does_not_count() -> None:
    turns: list[int] = []
    pairs = alternate(lambda turn: turns.append(turn), lambda _: None, repeats=1, warm_up=2)
    assert turns == [0, 1, 0]
    assert len(pairs.plain) == len(pairs.other) == 1


def test_arms_take_turns_in_blocks_and_still_do_every_turn() -> None:
    calls: list[tuple[str, int]] = []

    def arm(name: str) -> Callable[[int], int]:
        def call(turn: int) -> int:
            calls.append((name, turn))
            return turn

        return call

    pairs = alternate(arm("p"), arm("o"), repeats=5, block=2)
    first = [("p", 0), ("p", 1), ("o", 0), ("o", 1)]
    second = [("o", 2), ("o", 3), ("p", 2), ("p", 3)]
    assert calls == [*first, *second, ("p", 4), ("o", 4)]
    assert pairs == Pairs((0, 1, 2, 3, 4), (0, 1, 2, 3, 4))


async def test_coroutines_alternate_in_the_same_order() -> None:
    calls: list[tuple[str, int]] = []

    async def plain(turn: int) -> int:
        calls.append(("plain", turn))
        return turn

    async def other(turn: int) -> int:
        calls.append(("other", turn))
        return -turn

    pairs = await alternate_async(plain, other, repeats=2, warm_up=1)
    measured = [("plain", 0), ("other", 0), ("other", 1), ("plain", 1)]
    assert calls == [("plain", 0), ("other", 0), *measured]
    assert pairs == Pairs((0, 1), (0, -1))


async def test_a_timed_call_does_the_work_once_and_takes_no_negative_time() -> None:
    turns: list[int] = []

    async def work(turn: int) -> None:
        turns.append(turn)

    assert timed(turns.append)(3) >= 0
    assert await timed_async(work)(4) >= 0
    assert turns == [3, 4]


@pytest.mark.parametrize(("share", "expected"), [(0.01, 1), (0.5, 50), (0.99, 99), (1.0, 100)])
def test_a_percentile_is_the_smallest_value_that_covers_its_share(
    share: float, expected: float
) -> None:
    assert percentile(list(range(100, 0, -1)), share) == expected


def test_the_median_of_an_even_number_of_values_is_the_mean_of_the_middle_two() -> None:
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5


def test_ratios_and_differences_are_taken_pair_by_pair() -> None:
    pairs = Pairs((1.0, 2.0, 4.0), (3.0, 3.0, 2.0))
    assert ratios(pairs) == [3.0, 1.5, 0.5]
    assert differences(pairs) == [2.0, 1.0, -2.0]


def test_the_interval_of_a_constant_is_that_constant() -> None:
    interval = median_interval([1.25] * 50)
    assert (interval.low, interval.high) == (1.25, 1.25)


def test_the_interval_agrees_with_the_order_statistics_of_the_median() -> None:
    # For 1..101 the exact 95 % interval of the median, by the binomial, is ranks 41 to 61.
    interval = median_interval([float(value) for value in range(1, 102)])
    assert interval.low == pytest.approx(41, abs=2)
    assert interval.high == pytest.approx(61, abs=2)


def test_an_estimate_is_the_median_with_its_interval_and_min_keeps_it() -> None:
    found = estimate([float(value) for value in range(1, 102)])
    assert isinstance(found, Estimate)
    assert found == 51.0
    assert found.interval == median_interval([float(value) for value in range(1, 102)])
    assert min(found, 90.0) is found
    assert not isinstance(found / 2, Estimate)


def test_too_few_values_give_a_number_without_an_interval() -> None:
    enough = [1.0] * MIN_FOR_INTERVAL
    assert isinstance(estimate(enough), Estimate)
    assert not isinstance(estimate(enough[:-1]), Estimate)
    assert not isinstance(estimate(enough, enough[:-1]), Estimate)


def test_the_estimate_of_groups_is_the_mean_of_their_medians() -> None:
    found = estimate([1.0] * 6, [3.0] * 6)
    assert isinstance(found, Estimate)
    assert (found, found.interval) == (2.0, Interval(2.0, 2.0))


@pytest.mark.parametrize(
    "statistic", [median, median_interval, estimate, lambda v: percentile(v, 0.99)]
)
def test_no_values_are_an_error_that_says_so(statistic) -> None:
    with pytest.raises(ConfigError, match="nothing was measured"):
        statistic([])


async def test_any_number_of_arms_take_turns_going_first() -> None:
    order: list[tuple[str, int]] = []

    def arm(name: str):
        async def call(turn: int) -> str:
            order.append((name, turn))
            return f"{name}{turn}"

        return call

    found = await rotate_async({name: arm(name) for name in "abc"}, 2, warm_up=1)
    assert found == {name: [f"{name}0", f"{name}1"] for name in "abc"}
    assert "".join(name for name, turn in order if turn >= 0) == "abcbca"
    assert len(order) == 9

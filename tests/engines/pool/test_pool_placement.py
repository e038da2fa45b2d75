"""A pool's placement: by load, near to where a prompt's texts were last, around what has failed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rag_accel.engines.pool.placement import MOST_KEYS, PoolPlacement


def given_work(placement: PoolPlacement, *members: int, size: int = 1) -> None:
    for at in members:
        placement.began(at, size, {})


def test_work_goes_to_the_member_with_the_least() -> None:
    placement = PoolPlacement(3)
    given_work(placement, 0, 0, 1)
    assert placement.choose({}, 0.0) == 2


def test_a_fast_member_takes_more() -> None:
    placement = PoolPlacement(2)
    for at, seconds in ((0, 1.0), (1, 0.1)):
        placement.began(at, 1, {})
        placement.left(at, 1)
        placement.succeeded(at, 1, seconds)
    chosen = []
    for _ in range(11):
        at = placement.choose({}, 0.0)
        assert at is not None
        placement.began(at, 1, {})
        chosen.append(at)
    assert chosen.count(1) >= 9


def test_a_prompt_goes_where_most_of_it_was_last() -> None:
    placement = PoolPlacement(2)
    placement.began(1, 1, {"head": 10, "text": 90})
    placement.began(0, 1, {"head": 10})
    for at in (0, 1):
        placement.left(at, 1)
    assert placement.choose({"head": 10, "text": 90}, 0.0) == 1
    assert placement.choose({"head": 10}, 0.0) == 0


def test_a_member_that_knows_the_prompt_is_not_waited_for() -> None:
    placement = PoolPlacement(2)
    placement.began(0, 1, {"text": 90})
    given_work(placement, 0, 0, 0)
    assert placement.choose({"text": 90}, 0.0) == 1


def test_a_failed_member_pauses_longer_each_time() -> None:
    placement = PoolPlacement(2)
    for now, until in ((0.0, 0.5), (1.0, 2.0), (2.0, 4.0)):
        placement.failed(0, now, None)
        assert not placement.is_ready(0, until - 0.01)
        assert placement.is_ready(0, until)


def test_a_member_pauses_as_long_as_it_asks() -> None:
    placement = PoolPlacement(2)
    placement.failed(0, 0.0, 7.0)
    assert placement.choose({}, 6.9) == 1
    assert placement.choose({}, 7.0) == 0


def test_after_a_pause_a_member_is_tried_with_one_work() -> None:
    placement = PoolPlacement(2)
    placement.failed(0, 0.0, None)
    placement.began(0, 1, {})
    assert placement.choose({}, 1.0) == 1
    placement.left(0, 1)
    placement.succeeded(0, 1, 0.1)
    given_work(placement, 1)
    assert placement.choose({}, 1.0) == 0


def test_where_all_pause_the_one_that_pauses_least_is_tried() -> None:
    placement = PoolPlacement(2)
    placement.failed(0, 0.0, 60.0)
    placement.failed(1, 0.0, 30.0)
    assert placement.choose({}, 1.0) == 1
    assert placement.choose({}, 1.0, {1}) == 0
    assert placement.choose({}, 1.0, {0, 1}) is None


def test_keys_are_bounded() -> None:
    placement = PoolPlacement(2)
    placement.began(1, 1, {"first": 5})
    for number in range(MOST_KEYS):
        placement.began(1, 1, {number: 1})
        placement.left(1, 1)
    placement.left(1, 1)
    assert placement.choose({"first": 5}, 0.0) == 0


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.booleans()), max_size=40))
def test_loads_are_those_of_the_works_that_members_have(
    events: list[tuple[int, int, bool]],
) -> None:
    placement = PoolPlacement(3)
    live: list[tuple[int, int]] = []
    for at, size, ends in events:
        placement.began(at, size, {})
        live.append((at, size))
        if ends:
            ended, its = live.pop(0)
            placement.left(ended, its)
    for at in range(3):
        mine = [size for member, size in live if member == at]
        assert (placement.loads[at].items, placement.loads[at].works) == (sum(mine), len(mine))

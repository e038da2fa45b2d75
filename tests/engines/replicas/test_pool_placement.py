"""A pool's placement: by load, near to where a prompt's texts were last, around what has failed."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rag_accel.engines.replicas.pool_placement import MOST_KEYS, Failure, PoolPlacement
from rag_accel.testing import ManualClock


def placed(count: int) -> PoolPlacement:
    return PoolPlacement(count, ManualClock())


def set_clock(placement: PoolPlacement, now: float) -> None:
    placement.clock = ManualClock(now)


def choose(
    placement: PoolPlacement, keys: Any, size: int, now: float, without: Any = ()
) -> int | None:
    set_clock(placement, now)
    return placement.choose(keys, size, without)


def is_ready(placement: PoolPlacement, at: int, now: float) -> bool:
    set_clock(placement, now)
    return placement.is_ready(at)


def given_work(placement: PoolPlacement, *members: int, size: int = 1) -> None:
    for at in members:
        placement.pin(at, size, {})


def fail(
    placement: PoolPlacement,
    at: int,
    now: float,
    asked_s: float | None = None,
    *,
    began_at: float | None = None,
) -> None:
    set_clock(placement, now)
    placement.failed(at, Failure(now if began_at is None else began_at, now, "", asked_s))


def end(placement: PoolPlacement, at: int, seconds: float, keys: Any = None) -> None:
    """Let a member have and end a work."""
    placement.pin(at, 1, keys or {})
    placement.left(at, 1)
    placement.succeeded(at, 1, seconds)


def test_work_goes_to_the_member_with_the_least() -> None:
    placement = placed(3)
    given_work(placement, 0, 0, 1)
    assert choose(placement, {}, 1, 0.0) == 2


def test_a_fast_member_takes_more() -> None:
    placement = placed(2)
    for at, seconds in ((0, 1.0), (1, 0.1)):
        placement.pin(at, 1, {})
        placement.left(at, 1)
        placement.succeeded(at, 1, seconds)
    chosen = []
    for _ in range(11):
        at = choose(placement, {}, 1, 0.0)
        assert at is not None
        placement.pin(at, 1, {})
        chosen.append(at)
    assert chosen.count(1) >= 9


def test_a_prompt_goes_where_most_of_it_was_last() -> None:
    placement = placed(2)
    placement.pin(1, 1, {"head": 10, "text": 90})
    placement.pin(0, 1, {"head": 10})
    for at in (0, 1):
        placement.left(at, 1)
    assert choose(placement, {"head": 10, "text": 90}, 1, 0.0) == 1
    assert choose(placement, {"head": 10}, 1, 0.0) == 0


def test_a_member_that_knows_the_prompt_is_not_waited_for() -> None:
    placement = placed(2)
    placement.pin(0, 1, {"text": 90})
    given_work(placement, 0, 0, 0)
    assert choose(placement, {"text": 90}, 1, 0.0) == 1


def test_a_failed_member_pauses_longer_each_time() -> None:
    placement = placed(2)
    for now, until in ((0.0, 0.5), (1.0, 2.0), (2.0, 4.0)):
        fail(placement, 0, now)
        assert not is_ready(placement, 0, until - 0.01)
        assert is_ready(placement, 0, until)


def test_a_member_pauses_as_long_as_it_asks() -> None:
    placement = placed(2)
    fail(placement, 0, 0.0, 7.0)
    assert choose(placement, {}, 1, 6.9) == 1
    assert choose(placement, {}, 1, 7.0) == 0


def test_works_that_fail_together_pause_a_member_once() -> None:
    placement = placed(2)
    for number in range(8):
        fail(placement, 0, 10.0 + number / 100, began_at=9.0)
    assert not is_ready(placement, 0, 10.49)
    assert is_ready(placement, 0, 10.5)
    fail(placement, 0, 10.5, began_at=10.5)  # of a work that it was given since
    assert not is_ready(placement, 0, 11.49)


def test_a_member_that_fails_together_may_ask_for_a_longer_pause() -> None:
    placement = placed(2)
    fail(placement, 0, 10.0, began_at=9.0)
    fail(placement, 0, 10.1, 30.0, began_at=9.0)
    assert not is_ready(placement, 0, 40.0)
    assert is_ready(placement, 0, 40.2)


def test_a_member_that_failed_at_once_is_tried_with_the_first_work_after_its_pause() -> None:
    for began_at, tried in ((0.0, 1), (-30.0, 0)):
        placement = placed(2)
        end(placement, 0, 0.1)
        fail(placement, 1, 0.0, began_at=began_at)
        assert choose(placement, {}, 1, 0.4) == 0
        assert choose(placement, {}, 1, 0.5) == tried


def test_each_member_is_tried_before_the_fastest_is_preferred() -> None:
    placement = placed(3)
    chosen = []
    for _ in range(9):
        at = choose(placement, {"shared": 100}, 1, 0.0)
        assert at is not None
        end(placement, at, 0.3 if at == 0 else 0.015, {"shared": 100})
        chosen.append(at)
    assert chosen[:3] == [0, 1, 2]
    assert 0 not in chosen[3:]


def test_a_lone_work_goes_where_it_ends_soonest() -> None:
    placement = placed(2)
    end(placement, 0, 1.0)
    end(placement, 1, 0.1)
    given_work(placement, *[1] * 8)
    assert choose(placement, {}, 1, 0.0) == 1  # the ninth there ends before the first at 0
    given_work(placement, 1, 1)
    assert choose(placement, {}, 1, 0.0) == 0


def test_what_a_slow_member_has_read_is_computed_again_by_a_fast_one() -> None:
    for seconds, chosen in ((0.1, 0), (0.2, 0), (0.3, 1)):
        placement = placed(2)
        end(placement, 1, 0.1)
        end(placement, 0, seconds, {"text": 90})
        assert choose(placement, {"text": 90}, 1, 0.0) == chosen


def test_after_a_pause_a_member_is_tried_with_one_work() -> None:
    placement = placed(2)
    fail(placement, 0, 0.0)
    placement.pin(0, 1, {})
    assert choose(placement, {}, 1, 1.0) == 1
    placement.left(0, 1)
    placement.succeeded(0, 1, 0.1)
    given_work(placement, 1)
    assert choose(placement, {}, 1, 1.0) == 0


def test_where_all_pause_the_one_that_pauses_least_is_tried() -> None:
    placement = placed(2)
    fail(placement, 0, 0.0, 60.0)
    fail(placement, 1, 0.0, 30.0)
    assert choose(placement, {}, 1, 1.0) == 1
    assert choose(placement, {}, 1, 1.0, {1}) == 0
    assert choose(placement, {}, 1, 1.0, {0, 1}) is None


def test_keys_are_bounded() -> None:
    placement = placed(2)
    placement.pin(1, 1, {"first": 5})
    for number in range(MOST_KEYS):
        placement.pin(1, 1, {number: 1})
        placement.left(1, 1)
    placement.left(1, 1)
    assert choose(placement, {"first": 5}, 1, 0.0) == 0


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.booleans()), max_size=40))
def test_loads_are_those_of_the_works_that_members_have(
    events: list[tuple[int, int, bool]],
) -> None:
    placement = placed(3)
    live: list[tuple[int, int]] = []
    for at, size, ends in events:
        placement.pin(at, size, {})
        live.append((at, size))
        if ends:
            ended, its = live.pop(0)
            placement.left(ended, its)
    for at in range(3):
        mine = [size for member, size in live if member == at]
        assert (placement.loads[at].items, placement.loads[at].works) == (sum(mine), len(mine))


def test_early_work_goes_where_its_prompt_will_and_is_no_load() -> None:
    placement = placed(2)
    end(placement, 0, 1.0)
    assert placement.early({"history": 9}, 1) == 1  # which was never tried
    assert placement.loads[1] == placed(2).loads[1]
    assert choose(placement, {"history": 9, "rest": 1}, 1, 0.0) == 1
    end(placement, 1, 1.0)
    assert choose(placement, {"history": 9, "rest": 1}, 1, 0.0) == 1
    assert placement.early({"history": 9}, 1) == 1


def test_early_work_goes_nowhere_while_its_member_works_or_is_paused() -> None:
    placement = placed(1)
    given_work(placement, 0)
    assert placement.early({}, 1) is None
    placement.left(0, 1)
    assert placement.early({}, 1) == 0
    fail(placement, 0, 0.0)
    assert placement.early({}, 1) is None

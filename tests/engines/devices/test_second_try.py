"""Pieces that are given to a second member because the first is late, silent or away: pure."""

from __future__ import annotations

from typing import Any

import pytest
from virtual_clients import check

from rag_accel.engine_api import WorkId
from rag_accel.engines.devices.placement import Placement
from rag_accel.engines.devices.plan import MemberBatch, MemberLimits, MemberSpec
from rag_accel.errors import ConfigError

FIRST = MemberSpec("first", alpha=0.001, beta=0.1, max_threads=0)
SECOND = MemberSpec("second", alpha=0.001, beta=0.3, max_threads=0)
HERE = MemberSpec("here", alpha=0.001, beta=0.3, max_threads=1)
LIMITS = MemberLimits(second_try_s=0.5, silent_s=2.0, absent_s=2.0)


def group(
    *members: MemberSpec, slo_s: float | None = 1.0, step_timeout_s: float = 100.0
) -> Placement:
    return Placement(members or (FIRST, SECOND), slo_s, LIMITS, step_timeout_s=step_timeout_s)


def add(placement: Placement, work: str, now: float = 0.0, **more: Any) -> None:
    placement.add(WorkId(work), [100], now, **more)


def bind(placement: Placement, now: float) -> dict[str, MemberBatch]:
    found = {batch.member: batch for batch in placement.bind(now)}
    check(placement)
    return found


def work_items(pieces: Any) -> list[str]:
    return [piece.work for piece in pieces]


def shared(*members: MemberSpec) -> tuple[Placement, MemberBatch, MemberBatch]:
    """Return a group in which the first is late with a work that the other has too."""
    placement = group(*members)
    add(placement, "a")
    first = bind(placement, 0.0)["first"]
    assert bind(placement, 0.69) == {}  # it should have ended at 0.2, and is given 0.5 s more
    assert placement.look_again_at(0.0) == pytest.approx(0.7)
    ((_, other),) = bind(placement, 0.71).items()
    assert work_items(other.pieces) == ["a"]
    return placement, first, other


def test_the_first_result_counts_and_the_other_is_dropped() -> None:
    placement, first, second = shared()
    assert work_items(placement.ended(second, 0.4, 1.1)) == ["a"]
    check(placement)
    assert placement.num_work_items == 0
    assert placement.ended(first, 30.0, 30.0) == ()


def test_a_result_of_the_late_member_counts_while_the_other_computes() -> None:
    placement, first, second = shared()
    assert work_items(placement.ended(first, 0.8, 0.8)) == ["a"]
    assert placement.ended(second, 0.4, 1.1) == ()


def test_a_result_of_the_late_member_takes_the_piece_out_of_the_queue() -> None:
    placement = group(slo_s=60.0)
    add(placement, "a")
    first = bind(placement, 0.0)["first"]
    placement.add(WorkId("big"), [2000], 0.0)
    bind(placement, 5.0)  # "a" is queued once more, whoever takes it
    assert work_items(placement.ended(first, 6.0, 6.0)) == ["a"]
    check(placement)
    assert not placement.has(WorkId("a"))


def test_what_the_late_member_fails_is_left_to_the_other() -> None:
    placement, first, second = shared()
    assert placement.failed(first) == ()
    check(placement)
    assert placement.num_queued == 0
    assert work_items(placement.ended(second, 0.4, 1.1)) == ["a"]


def test_what_both_fail_ends_with_an_error() -> None:
    placement, first, second = shared()
    assert placement.failed(second) == ()
    check(placement)
    assert work_items(placement.failed(first)) == ["a"]


def test_what_is_lost_or_refused_by_the_late_member_is_not_computed_a_third_time() -> None:
    for lose in (True, False):
        placement, first, _ = shared()
        assert (placement.lose("first") if lose else placement.refused(first, 9.0)) == ()
        check(placement)
        assert placement.num_queued == 0


def test_without_a_free_member_nothing_is_queued_twice() -> None:
    placement = group(FIRST)
    add(placement, "a")
    bind(placement, 0.0)
    assert bind(placement, 5.0) == {}
    assert placement.num_queued == 0


def test_a_member_here_that_is_late_gets_help_too() -> None:
    placement = group(HERE, SECOND)
    add(placement, "a")
    bind(placement, 0.0)
    assert work_items(bind(placement, 2.0)["second"].pieces) == ["a"]


def test_a_late_step_that_nobody_waits_for_is_given_up() -> None:
    placement, first, second = shared()
    assert placement.silent(1.0) == []
    placement.ended(second, 0.4, 1.1)
    assert placement.silent(1.1) == [first]
    assert placement.give_up(first) == ()
    assert (placement.members, placement.absent) == (("second",), ("first",))


def test_where_all_are_silent_the_last_one_given_up_ends_the_work() -> None:
    placement, first, second = shared()
    assert placement.silent(3.7) == []  # 4 times 0.2 s, the limit of 1 s and 2 s more
    assert placement.silent(3.81) == [first]
    assert placement.give_up(first) == ()
    assert placement.num_queued == 0
    assert placement.silent(5.4) == [second]
    assert work_items(placement.give_up(second)) == ["a"]


def test_a_hang_ends_a_silence_that_may_last_longer() -> None:
    placement = group(FIRST, slo_s=None, step_timeout_s=10.0)
    batch = running(placement, "a")
    assert placement.silent(9.0) == []
    assert placement.silent(10.0) == [batch]


def test_a_member_here_is_never_given_up() -> None:
    placement = group(HERE)
    add(placement, "a")
    bind(placement, 0.0)
    assert placement.silent(1e6) == []


def test_work_waits_for_a_member_that_may_return() -> None:
    placement = group(FIRST)
    add(placement, "a")
    add(placement, "b")
    placement.failed(bind(placement, 0.0)["first"], has_changed=True)
    assert placement.unanswered(1.0) == ()
    assert placement.look_again_at(1.0) == pytest.approx(3.0)
    placement.rejoin(FIRST)
    assert sum(len(batch.pieces) for batch in bind(placement, 2.0).values()) == 1
    assert placement.unanswered(9.0) == ()


def test_work_does_not_wait_for_ever() -> None:
    placement = group(FIRST)
    add(placement, "a")
    placement.failed(bind(placement, 0.0)["first"], has_changed=True)
    placement.unanswered(1.0)
    add(placement, "later", now=2.0)
    placement.unanswered(2.0)
    assert placement.unanswered(3.0) == ("a",)
    assert placement.unanswered(4.0) == ("later",)


def test_work_that_waited_for_a_member_that_came_back_waits_anew_when_it_goes_again() -> None:
    placement = group(FIRST, slo_s=None)
    placement.failed(running(placement, "x"), has_changed=True)
    add(placement, "a", now=1.0)
    assert placement.unanswered(1.0) == ()
    placement.rejoin(FIRST)
    batch = bind(placement, 2.0)["first"]  # all that waited: x, which goes alone, or a
    placement.unanswered(2.0)
    placement.failed(batch, has_changed=True)
    assert placement.unanswered(9.0) == ()
    assert len(placement.unanswered(11.1)) == 2


def test_what_else_a_member_computes_that_became_another_model_is_given_up() -> None:
    placement = group(TWO_AT_ONCE, SECOND)
    first = running(placement, "a")
    other = running(placement, "b", 0.01)
    assert (first.member, other.member) == ("first", "first")
    placement.failed(first, has_changed=True)
    assert placement.running("first") == ()
    assert placement.ended(other, 0.2, 0.2) == ()
    found = bind(placement, 0.2)["second"]
    placement.ended(found, 0.4, 0.6)
    placement.ended(bind(placement, 0.6)["second"], 0.4, 1.0)
    assert placement.num_work_items == 0


def test_without_any_member_that_may_return_work_ends_at_once() -> None:
    placement = group(FIRST)
    add(placement, "a")
    placement.lose("first")
    assert placement.unanswered(0.0) == ("a",)


# Who may be given whose texts.


def test_a_restricted_work_goes_to_those_it_is_admitted_to_only() -> None:
    placement = group()
    add(placement, "a", admitted=frozenset({"second"}))
    add(placement, "b")
    batches = bind(placement, 0.0)
    assert {name: work_items(batch.pieces) for name, batch in batches.items()} == {
        "first": ["b"],
        "second": ["a"],
    }


def test_neither_a_failure_nor_lateness_nor_absence_takes_a_work_where_it_may_not_go() -> None:
    placement = group()
    add(placement, "a", admitted=frozenset({"second"}))
    batch = bind(placement, 0.0)["second"]
    assert bind(placement, 50.0) == {}  # late, and the first is free
    placement.failed(batch, has_changed=True)
    assert bind(placement, 50.0) == {}
    assert placement.unanswered(51.0) == ()
    assert placement.unanswered(53.1) == ("a",)


def test_what_fails_on_all_that_may_have_it_ends_though_others_are_there() -> None:
    placement = group()
    add(placement, "a", admitted=frozenset({"second"}))
    assert work_items(placement.failed(bind(placement, 0.0)["second"])) == ["a"]


# Several steps in flight.


def test_a_member_with_two_steps_in_flight_takes_a_second_while_the_first_runs() -> None:
    placement = group(MemberSpec("first", 0.001, 0.1, max_threads=0, in_flight=2), slo_s=None)
    for now, work in enumerate("abc"):
        add(placement, work, now / 100)
    first = bind(placement, 0.0)["first"]
    assert work_items(first.pieces) == ["a", "b", "c"]
    for work in "de":
        add(placement, work, 0.1)
        bind(placement, 0.1)
    assert [work_items(batch.pieces) for batch in placement.running("first")] == [
        ["a", "b", "c"],
        ["d"],
    ]
    placement.ended(first, 0.4, 0.4)
    assert work_items(bind(placement, 0.4)["first"].pieces) == ["e"]


TWO_AT_ONCE = MemberSpec("first", 0.001, 0.1, max_threads=0, in_flight=2)


def running(placement: Placement, work: str, now: float = 0.0) -> MemberBatch:
    """Return the step that a work alone begins."""
    add(placement, work, now)
    (batch,) = bind(placement, now).values()
    return batch


def test_each_step_in_flight_counts_for_what_members_compute_in_a_second() -> None:
    one, two = group(FIRST, slo_s=None), group(TWO_AT_ONCE, slo_s=None)
    assert two.tokens_a_second(100.0) == 2 * one.tokens_a_second(100.0)
    assert two.full_step_s(100.0) == one.full_step_s(100.0)


def test_what_is_queued_is_computed_in_all_steps_in_flight() -> None:
    one, two = group(FIRST, slo_s=None), group(TWO_AT_ONCE, slo_s=None)
    assert one.drained_s(1000, 0.0) == pytest.approx(1.1)
    assert two.drained_s(1000, 0.0) == pytest.approx(0.6)  # 500 tokens each
    running(two, "a")  # until 0.2
    assert two.drained_s(1000, 0.0) == pytest.approx(0.7)
    running(two, "b")
    assert two.drained_s(1000, 0.0) == pytest.approx(0.8)


def test_while_all_members_are_away_the_queue_is_as_long_as_if_they_came_back_now() -> None:
    placement = group(FIRST)
    before = placement.drained_s(1000, 0.0), placement.tokens_a_second(100.0)
    placement.suspend("first")
    assert (placement.drained_s(1000, 0.0), placement.tokens_a_second(100.0)) == before
    assert placement.late_by_s(1000, 0.0) == pytest.approx(0.1)


def test_a_group_without_any_member_has_nothing_to_predict() -> None:
    placement = group(FIRST)
    placement.lose("first")
    assert placement.drained_s(1000, 0.0) == placement.late_by_s(1000, 0.0) == 0.0
    assert placement.tokens_a_second(100.0) == placement.full_step_s(100.0) == 0.0


# Limits.


def test_a_silent_call_is_given_up_without_a_limit_too() -> None:
    limits = MemberLimits(silent_without_slo_s=5.0)
    placement = Placement((FIRST,), None, limits, step_timeout_s=100.0)
    batch = running(placement, "a")  # expected to take 0.2 s
    assert placement.silent(5.7) == []
    assert placement.silent(5.9) == [batch]
    assert placement.look_again_at(1.0) == pytest.approx(5.8)
    assert work_items(placement.give_up(batch)) == ["a"]


def test_waits_for_a_probe_grow_up_to_a_bound() -> None:
    limits = MemberLimits(first_pause_s=0.25, longest_pause_s=4.0)
    assert [limits.pause_s(n) for n in range(6)] == [0.25, 0.5, 1.0, 2.0, 4.0, 4.0]
    assert limits.pause_s(10**6) == 4.0


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_limit_that_is_no_length_of_time_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="no number from 0"):
        MemberLimits(silent_s=value)

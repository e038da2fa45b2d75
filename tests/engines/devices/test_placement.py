"""Placement as tables of events in virtual time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rag_accel.engine_api import WorkId
from rag_accel.engines.devices.pieces import AGEING_S, LATE_SHARE, PIECE_TOKENS
from rag_accel.engines.devices.placement import MOST_FAILURES, Placement
from rag_accel.engines.devices.plan import MemberBatch, MemberSpec

FAST = MemberSpec("fast", alpha=0.001, beta=0.1, max_threads=0)
SLOW = MemberSpec("slow", alpha=0.004, beta=0.0, max_threads=0)


def group(slo_s: float | None = None, *members: MemberSpec) -> Placement:
    return Placement(members or (FAST, SLOW), slo_s)


def add(
    placement: Placement, *work_items: str, cost: int = 100, now: float = 0.0, **more: Any
) -> None:
    for work in work_items:
        placement.add(WorkId(work), [cost], now, **more)


def bound(batches: list[MemberBatch]) -> dict[str, list[str]]:
    return {batch.member: [piece.work for piece in batch.pieces] for batch in batches}


def only(batches: list[MemberBatch]) -> MemberBatch:
    assert len(batches) == 1
    return batches[0]


# Who takes what.


def test_in_time_everywhere_the_preferred_member_takes_all() -> None:
    placement = group(1.0)
    add(placement, "a", "b")
    assert bound(placement.bind(0.0)) == {"fast": ["a", "b"]}


def test_what_the_preferred_member_cannot_end_in_time_overflows() -> None:
    placement = group(0.45)  # fast needs 0.1 + 0.3 s for three of them
    add(placement, "a", "b", "c", "d")
    assert bound(placement.bind(0.0)) == {"fast": ["a", "b", "c"], "slow": ["d"]}


def test_a_member_never_takes_what_would_make_the_rest_of_its_batch_late() -> None:
    placement = group(None, FAST)
    add(placement, "a", deadline=0.35)
    add(placement, "b", deadline=9.0)
    add(placement, "c", deadline=9.0)
    assert bound(placement.bind(0.0)) == {"fast": ["a", "b"]}


def test_what_still_ends_in_time_waits_for_the_preferred_member() -> None:
    placement = group(2.0)
    add(placement, "a", cost=500)
    placement.bind(0.0)
    add(placement, "b", now=0.1)
    assert placement.bind(0.1) == []


def test_what_would_end_in_the_second_half_of_its_time_goes_where_it_ends_sooner() -> None:
    placement = group(1.0)
    add(placement, "a", cost=500)
    placement.bind(0.0)
    add(placement, "b", now=0.1)  # in time on fast, at 0.8; slow ends it at 0.5
    assert bound(placement.bind(0.1)) == {"slow": ["b"]}


def test_a_piece_that_leaves_no_room_for_others_takes_what_they_leave() -> None:
    placement = group(None, MemberSpec("one", alpha=0.001, beta=0.5))
    add(placement, "hurried", deadline=0.61)
    for number in range(4):
        add(placement, f"w{number}", deadline=1.0)
    assert bound(placement.bind(0.0)) == {"one": ["w0", "w1", "w2", "w3", "hurried"]}


def test_a_piece_in_a_hurry_goes_first_where_nobody_is_late_for_it() -> None:
    placement = group(None, MemberSpec("one", alpha=0.001, beta=0.5))
    add(placement, "hurried", deadline=0.61)
    add(placement, "w", deadline=9.0)
    assert bound(placement.bind(0.0)) == {"one": ["hurried"]}


def test_what_is_late_hurries_nobody() -> None:
    placement = group(None, MemberSpec("one", alpha=0.001, beta=0.1))
    add(placement, "late", deadline=0.01)
    add(placement, "late too", deadline=0.02)
    assert bound(placement.bind(0.0)) == {"one": ["late", "late too"]}


def test_how_late_all_would_be_with_more() -> None:
    placement = group(0.5)  # fast takes 400 tokens in 0.5 s, slow 125
    assert placement.late_by_s(525, 0.0) == pytest.approx(0.0)
    assert placement.late_by_s(775, 0.0) == pytest.approx(0.2)
    add(placement, "a", cost=250)
    assert placement.queued_tokens == 250
    assert placement.late_by_s(525, 0.0) == pytest.approx(0.2)
    placement.bind(0.0)
    assert placement.queued_tokens == 0
    assert placement.late_by_s(75, 0.0) == pytest.approx(0.0)


def test_a_member_that_begins_after_all_is_computed_takes_no_share() -> None:
    idle = MemberSpec("later", alpha=0.001, beta=5.0, max_threads=0)
    placement = group(0.5, FAST, idle)
    assert placement.late_by_s(900, 0.0) == pytest.approx(0.5)


def test_without_a_limit_or_members_nothing_is_late() -> None:
    assert group().late_by_s(10**9, 0.0) == 0.0
    placement = group(0.5, FAST)
    placement.lose("fast")
    assert placement.late_by_s(10**9, 0.0) == 0.0


def test_without_any_limit_it_goes_where_it_ends_soonest() -> None:
    placement = group()
    add(placement, "a", cost=500)
    assert bound(placement.bind(0.0)) == {"fast": ["a"]}
    add(placement, "b", cost=20, now=0.1)
    assert bound(placement.bind(0.1)) == {"slow": ["b"]}


def test_a_deadline_counts_less_the_learned_rest_of_the_request() -> None:
    placement = group()
    add(placement, "first", request="r", depth=3)
    batch = only(placement.bind(0.0))
    placement.ended(batch, 0.2, 0.2)
    add(placement, "second", now=1.2, request="r", depth=1)  # so a level takes 0.5 s
    placement.cancel([WorkId("second")])
    add(placement, "a", cost=500, now=2.0)
    placement.bind(2.0)
    for work, depth in (("near", 1), ("far", 3)):
        add(placement, work, now=2.0, deadline=4.0, depth=depth)
    assert bound(placement.bind(2.0)) == {"slow": ["far"]}


def test_a_member_here_takes_no_core_that_another_holds() -> None:
    here = MemberSpec("here", alpha=0.001, beta=0.1)
    other = MemberSpec("other", alpha=0.001, beta=0.1)
    placement = group(None, here, other)
    add(placement, "a")
    assert only(placement.bind(0.0, cores=1)).threads == 1
    add(placement, "b")
    assert placement.bind(0.0, cores=1) == []
    assert bound(placement.bind(0.0, cores=2)) == {"other": ["b"]}


def test_a_member_alone_gets_all_cores() -> None:
    placement = group(None, *(MemberSpec(name, max_threads=8) for name in ("here", "other")))
    add(placement, "a")
    assert only(placement.bind(0.0, cores=8)).threads == 8


def test_two_members_here_share_the_cores() -> None:
    placement = group(None, *(MemberSpec(name, max_threads=8) for name in ("here", "other")))
    placement.add(WorkId("bulk"), [PIECE_TOKENS] * 8, 0.0)
    assert [batch.threads for batch in placement.bind(0.0, cores=8)] == [4, 4]


def test_a_paused_member_takes_nothing_until_its_time_has_come() -> None:
    placement = group(None, FAST)
    placement.pause("fast", 5.0)
    add(placement, "a")
    assert placement.bind(1.0) == []
    assert placement.look_again_at(1.0) == 5.0
    assert bound(placement.bind(5.0)) == {"fast": ["a"]}


# In which order.


def test_among_equally_urgent_works_the_shorter_goes_first() -> None:
    placement = group(None, MemberSpec("one", max_texts=1))
    add(placement, "long", cost=90)
    add(placement, "short", cost=10, now=0.01)
    assert bound(placement.bind(0.02)) == {"one": ["short"]}


def test_the_older_request_goes_before_a_shorter_work() -> None:
    placement = group(None, MemberSpec("one", max_texts=1))
    add(placement, "old", cost=90)
    add(placement, "short", cost=10, now=0.5)
    assert bound(placement.bind(0.5)) == {"one": ["old"]}


def test_of_equally_old_works_the_deeper_goes_first() -> None:
    placement = group(None, MemberSpec("one", max_texts=1))
    add(placement, "shallow", cost=10, depth=1)
    add(placement, "deep", cost=90, depth=4)
    assert bound(placement.bind(0.0)) == {"one": ["deep"]}


def test_what_is_late_anyway_does_not_make_others_late() -> None:
    placement = group(None, MemberSpec("one", alpha=0.001, beta=0.1, max_texts=1))
    add(placement, "late", deadline=0.01)
    add(placement, "timely", deadline=1.0)
    assert bound(placement.bind(0.0)) == {"one": ["timely"]}


def test_pieces_of_a_bulk_work_come_from_its_long_end() -> None:
    placement = group(None, FAST)
    costs = [10] * 100 + [PIECE_TOKENS]
    placement.add(WorkId("bulk"), costs, 0.0)
    first = only(placement.bind(0.0)).pieces[0]
    assert first.positions == (100,)


def test_a_query_goes_before_the_further_pieces_of_a_bulk_work() -> None:
    placement = group(None, FAST)
    placement.add(WorkId("bulk"), [PIECE_TOKENS] * 8, 0.0)
    batch = only(placement.bind(0.0))
    add(placement, "query", cost=10, now=0.5)
    placement.ended(batch, 1.0, 1.0)
    assert bound(placement.bind(1.0))["fast"][0] == "query"


def test_two_bulk_works_take_turns() -> None:
    placement = group(None, MemberSpec("one", max_tokens=PIECE_TOKENS))
    for work in ("a", "b"):
        placement.add(WorkId(work), [PIECE_TOKENS] * 3, 0.0)
    order: list[str] = []
    for turn in range(6):
        batch = only(placement.bind(turn / 10))
        order.append(batch.pieces[0].work)
        placement.ended(batch, 0.1, (turn + 1) / 10)
    assert order == ["a", "b"] * 3


def test_what_has_waited_long_goes_before_all() -> None:
    placement = group(None, MemberSpec("one", max_texts=1, max_tokens=PIECE_TOKENS))
    placement.add(WorkId("bulk"), [PIECE_TOKENS] * 3, 0.0)
    placement.ended(only(placement.bind(0.0)), 0.1, 0.1)
    add(placement, "query", now=AGEING_S)
    assert bound(placement.bind(AGEING_S)) == {"one": ["bulk"]}


# What fails, is lost or is cancelled.


def test_what_failed_on_one_member_runs_alone_on_another_first() -> None:
    placement = group(9.0)
    add(placement, "a", "b")
    assert placement.failed(only(placement.bind(0.0))) == ()
    assert bound(placement.bind(0.1)) == {"slow": ["a"]}


def test_what_failed_on_all_members_ends_with_its_error() -> None:
    placement = group(9.0)
    add(placement, "a")
    assert placement.failed(only(placement.bind(0.0))) == ()
    final = placement.failed(only(placement.bind(0.1)))
    assert [piece.work for piece in final] == ["a"]
    assert placement.num_work_items == 0


def test_with_one_member_a_batch_that_failed_is_tried_one_by_one() -> None:
    placement = group(9.0, FAST)
    add(placement, "a", "b")
    assert placement.failed(only(placement.bind(0.0))) == ()
    batch = only(placement.bind(0.1))
    assert [piece.work for piece in batch.pieces] == ["a"]
    assert [piece.work for piece in placement.failed(batch)] == ["a"]


def test_a_member_is_away_after_three_failed_steps_in_a_row() -> None:
    placement = group(9.0)
    for number in range(MOST_FAILURES):
        assert placement.members == ("fast", "slow")
        add(placement, f"w{number}", now=float(number))
        batches = {batch.member: batch for batch in placement.bind(float(number))}
        placement.failed(batches.pop("fast"))
        for batch in (*batches.values(), *placement.bind(float(number))):
            placement.ended(batch, 0.1, number + 0.5)
    assert placement.members == ("slow",)
    assert placement.absent == ("fast",)


def test_a_step_that_ends_well_begins_the_count_again() -> None:
    placement = group(9.0, FAST)
    for number in range(2 * MOST_FAILURES):
        add(placement, f"w{number}")
        batch = only(placement.bind(0.0))
        if number % 2:
            placement.ended(batch, 0.1, 0.1)
        else:
            placement.failed(batch)
    assert placement.members == ("fast",)


def test_a_member_that_was_away_joins_again_in_its_place_with_the_line_measured_now() -> None:
    placement = group(9.0)
    add(placement, "a")
    placement.failed(only(placement.bind(0.0)), has_changed=True)
    assert placement.members == ("slow",)
    placement.rejoin(replace(FAST, alpha=0.5))
    assert placement.members == ("fast", "slow")
    assert placement._members["fast"].lines.predict_s(1, False) == pytest.approx(0.6)


def test_what_a_lost_member_held_goes_to_another() -> None:
    placement = group(9.0)
    add(placement, "a")
    placement.bind(0.0)
    assert placement.lose("fast") == ()
    assert bound(placement.bind(0.1)) == {"slow": ["a"]}


def test_a_late_result_of_a_lost_member_is_dropped() -> None:
    placement = group(9.0)
    add(placement, "a")
    late = only(placement.bind(0.0))
    placement.lose("fast")
    assert placement.ended(late, 0.2, 0.2) == ()
    assert placement.num_work_items == 1


def test_a_piece_that_was_lost_with_two_members_ends() -> None:
    placement = group(9.0)
    add(placement, "a")
    placement.bind(0.0)
    placement.lose("fast")
    placement.bind(0.1)
    assert [piece.work for piece in placement.lose("slow")] == ["a"]


def test_a_result_of_cancelled_work_is_dropped_though_its_id_lives_again() -> None:
    placement = group(9.0)
    add(placement, "a")
    old = only(placement.bind(0.0))
    placement.cancel([WorkId("a")])
    add(placement, "a", now=0.1)
    assert placement.ended(old, 0.2, 0.2) == ()
    assert bound(placement.bind(0.2)) == {"fast": ["a"]}


def test_a_refused_step_goes_to_another_member_first() -> None:
    placement = group(None, FAST, SLOW)
    add(placement, "a", deadline=1e6)
    assert placement.refused(only(placement.bind(0.0)), 5.0) == ()
    assert bound(placement.bind(0.0)) == {"slow": ["a"]}


def test_a_piece_that_every_member_refuses_ends_after_the_third_time() -> None:
    placement = group(None, FAST)
    add(placement, "a", "b")
    for now in (0.0, 1.0):
        assert placement.refused(only(placement.bind(now)), now + 1.0) == ()
    assert {piece.work for piece in placement.refused(only(placement.bind(2.0)), 3.0)} == {"a", "b"}
    assert placement.members == ("fast",)
    assert placement.num_work_items == 0


def test_a_late_work_has_its_turn_though_new_ones_keep_coming() -> None:
    placement = group(None, MemberSpec("one", alpha=0.001, beta=0.0, max_texts=1, max_threads=0))
    add(placement, "late", deadline=0.01)
    order: list[str] = []
    for step in range(16):
        now = step / 10
        add(placement, f"new{step}", now=now, deadline=now + 1.0)
        batch = only(placement.bind(now))
        order.append(batch.pieces[0].work)
        placement.ended(batch, 0.1, now + 0.1)
    assert "late" in order[1:]  # long before it is overdue


def test_many_late_works_take_a_small_share_before_others() -> None:
    placement = group(None, MemberSpec("one", alpha=0.001, beta=0.0, max_texts=1, max_threads=0))
    for number in range(100):
        add(placement, f"late{number}", deadline=0.01)
        add(placement, f"new{number}", deadline=100.0)
    first = 0
    for step in range(16):
        now = step / 10
        batch = only(placement.bind(now))
        first += batch.pieces[0].work.startswith("late")
        placement.ended(batch, 0.1, now + 0.1)
    assert 1 <= first <= 16 * LATE_SHARE

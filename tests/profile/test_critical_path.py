"""The critical path is as long as the request, and only what is on it cannot be later."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from profile_harness import any_request, primitive, request

from rag_accel.profile.critical_path import critical_path
from rag_accel.profile.recording import RecordedRequest


def _end_if_later(one: RecordedRequest, late: str, by_s: float) -> float:
    """Return when the last primitive ends if ``late`` takes so much longer and all else as long."""
    was = {each.name: each.ended_s for each in one.primitives}
    ends: dict[str, float] = {}
    for each in one.primitives:
        begins = max((ends[name] for name in each.after), default=each.ready_s)
        began = max((was[name] for name in each.after), default=each.ready_s)
        ends[each.name] = begins + (each.ended_s - began) + (by_s if each.name == late else 0)
    return max(ends.values())


@settings(deadline=None)
@given(one=any_request())
def test_the_path_is_as_long_as_the_request(one: RecordedRequest) -> None:
    assert critical_path(one).length_s == one.makespan_s


@settings(deadline=None)
@given(one=any_request())
def test_the_parts_of_a_path_follow_each_other_without_a_gap(one: RecordedRequest) -> None:
    parts = critical_path(one).parts
    assert all(before.end_s == after.start_s for before, after in pairwise(parts))
    assert all(part.length_s > 0 for part in parts)
    if parts:
        assert (parts[0].start_s, parts[-1].end_s) == (one.arrived_s, one.ended_s)


@settings(deadline=None)
@given(one=any_request())
def test_a_primitive_may_end_later_by_its_slack_and_no_more(one: RecordedRequest) -> None:
    last_s = max((each.ended_s for each in one.primitives), default=0)
    for name, slack_s in critical_path(one).slack_s.items():
        assert _end_if_later(one, name, slack_s) == last_s
        assert _end_if_later(one, name, slack_s + 1) == last_s + 1


@settings(deadline=None)
@given(one=any_request())
def test_what_is_on_the_path_has_no_slack(one: RecordedRequest) -> None:
    path = critical_path(one)
    assert all(path.slack_s[each.name] == 0 for each in path.primitives)


@settings(deadline=None)
@given(one=any_request())
def test_without_what_is_off_the_path_the_path_is_the_same(one: RecordedRequest) -> None:
    path = critical_path(one)
    alone = request(*path.primitives, arrived=one.arrived_s, ended=one.ended_s)
    assert critical_path(alone).parts == path.parts


def test_a_fork_shows_the_longer_branch_and_the_slack_of_the_shorter() -> None:
    one = request(
        primitive("a.embedding", 1, 3),
        primitive("b.embedding", 1, 8, ready_s=0),
        primitive("c.decoding", 9, 12, "a.embedding", "b.embedding", ready_s=8),
        ended=13,
    )
    path = critical_path(one)
    assert [(part.spent, part.length_s) for part in path.parts] == [
        ("queued", 1),
        ("running", 7),
        ("queued", 1),
        ("running", 3),
        ("outside", 1),
    ]
    assert [each.name for each in path.primitives] == ["b.embedding", "c.decoding"]
    assert path.slack_s == {"a.embedding": 5, "b.embedding": 0, "c.decoding": 0}


def test_a_request_without_primitives_was_outside_all_the_time() -> None:
    path = critical_path(request(arrived=2, ended=5))
    assert [(part.spent, part.length_s) for part in path.parts] == [("outside", 3)]
    assert (path.primitives, path.slack_s) == ((), {})

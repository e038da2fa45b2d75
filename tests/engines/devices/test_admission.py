"""Who is admitted to a group that is asked for too much, in virtual time, and when others return.

Real costs of members differ from the first guess, and from step to step.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from virtual_clients import Outcome, VirtualGroup, VirtualMember, ask_in_loops

from rag_accel.engine_api import WorkId
from rag_accel.engines.devices.admission import (
    LEAST_SHARE,
    MOST_RETRY_S,
    Admission,
    Lateness,
    RetrySlots,
)
from rag_accel.engines.devices.placement import Placement
from rag_accel.engines.devices.plan import MemberSpec

SLO_S = 0.5
WARM_S = 3.0  # until lines are learned and queues are as long as they get
UNTIL_S = 10.0

ALONE = (VirtualMember(MemberSpec("a", 8e-5, 0.02, max_threads=0), 8.4e-5, 0.03),)
PAIR = (
    VirtualMember(MemberSpec("a", 6e-5, 0.02, max_threads=0), 8e-5, 0.03),
    VirtualMember(MemberSpec("b", 2e-4, 0.01), 2.6e-4, 0.012, jitter=0.2),
)


def equal() -> Callable[[], int]:
    return lambda: 75


def unequal() -> Callable[[], int]:
    rng = random.Random(3)
    return lambda: min(512, max(8, round(rng.lognormvariate(3.9, 0.8))))


def answers_a_second(outcome: Outcome) -> float:
    ended = [came + seconds for came, seconds in outcome.admitted]
    return sum(end > WARM_S for end in ended) / (UNTIL_S - WARM_S)


@pytest.mark.parametrize("lengths", [equal, unequal])
@pytest.mark.parametrize(("members", "clients"), [(ALONE, 270), (PAIR, 380)])
def test_under_three_times_overload_who_is_admitted_ends_in_time_and_members_stay_busy(
    members: tuple[VirtualMember, ...], clients: int, lengths: Callable[[], Callable[[], int]]
) -> None:
    without = ask_in_loops(VirtualGroup(members), clients, UNTIL_S, lengths())
    assert clients > 3 * SLO_S * answers_a_second(without)  # three times what fits into the limit
    group = VirtualGroup(members, SLO_S, refuses=True)
    outcome = ask_in_loops(group, clients, UNTIL_S, lengths())
    seconds = [seconds for came, seconds in outcome.admitted if came > WARM_S]
    in_limit = sum(took <= 1.2 * SLO_S for took in seconds) / len(seconds)
    assert in_limit >= 0.95
    assert max(seconds) < 2 * SLO_S
    assert answers_a_second(outcome) >= 0.85 * answers_a_second(without)
    assert outcome.refused_in_a_row < 20
    assert min(after for came, after in outcome.retries if came > WARM_S) > 0.1  # about a step


def test_members_ten_times_slower_than_first_guessed_are_found_out() -> None:
    members = [
        VirtualMember(MemberSpec("a", 8e-6, 0.003, max_threads=0), 8e-5, 0.03),
        VirtualMember(MemberSpec("b", 2.6e-5, 0.0012), 2.6e-4, 0.012),
    ]
    outcome = ask_in_loops(VirtualGroup(members, SLO_S, refuses=True), 380, UNTIL_S, equal())
    seconds = [seconds for came, seconds in outcome.admitted if came > WARM_S]
    assert sum(took <= 1.2 * SLO_S for took in seconds) / len(seconds) >= 0.95
    assert max(after for _, after in outcome.retries) < 5.0


def overloaded() -> tuple[Placement, Admission]:
    """Return a group whose members compute 1,000 tokens/s, with much to do, and its admission."""
    placement = Placement([MemberSpec("a", 0.001, 0.0, max_threads=0)], SLO_S)
    admission = Admission(placement, SLO_S)
    for number in range(10):
        work = WorkId(f"w{number}")
        admission.brought(f"w{number}", work, [100], 0.0)
        placement.add(work, [100], 0.0)
    placement.bind(0.0)
    return placement, admission


LIVE = {f"w{number}" for number in range(10)}


def test_200_that_are_refused_at_once_come_again_one_after_the_other() -> None:
    placement, admission = overloaded()
    waits = [admission.retry_after_s(f"r{number}", LIVE, 0.0) for number in range(200)]
    assert min(waits) >= placement.step_s() > 0.0
    gaps = [later - sooner for sooner, later in pairwise(waits)]
    assert min(gaps) == pytest.approx(max(gaps))
    assert waits[-1] == pytest.approx(waits[0] + 199 * 0.1 / 1.5)  # 100 tokens take 0.1 s


def test_a_group_with_nothing_to_do_takes_any_request() -> None:
    placement = Placement([MemberSpec("slow", 1.0, 9.0)], SLO_S)
    assert Admission(placement, SLO_S).retry_after_s("r", set(), 0.0) == 0.0


def test_while_all_members_are_away_no_more_is_admitted_than_they_could_compute() -> None:
    placement, admission = overloaded()
    before = admission.retry_after_s("r", LIVE, 0.0)
    placement.suspend("a")
    assert admission.retry_after_s("s", LIVE, 0.0) >= before > 0.0
    placement.cancel(map(WorkId, LIVE))
    assert admission.retry_after_s("t", set(), 0.0) == 0.0  # is told why nobody answers


def test_a_request_whose_vectors_are_all_known_brings_nothing_more() -> None:
    _, admission = overloaded()
    _, other = overloaded()
    admission.brought("known", WorkId("known"), [], 0.0)
    live = {*LIVE, "known"}
    assert admission.retry_after_s("r", live, 0.0) < other.retry_after_s("r", live, 0.0)


def test_a_work_that_did_not_end_teaches_nothing_of_one_of_the_same_name() -> None:
    lateness = Lateness(SLO_S)
    for number in range(64):
        work = WorkId(f"{number}")
        lateness.came(work, 0.0)
        lateness.forgotten(work)
        lateness.ended(work, 1000.0)  # one cut into pieces, whose arrival is not noted
    assert lateness.share == 1.0
    assert lateness.num_came == 0


def test_slots_behind_the_last_one_are_shared() -> None:
    slots = RetrySlots()
    waits = [slots.next_s(0.0, 0.5, 1.0) for _ in range(100)]
    assert max(waits) <= MOST_RETRY_S
    assert waits[:3] == [0.5, 1.5, 2.5]
    assert waits.count(0.5) > 1


def test_slots_that_have_passed_are_nobodys() -> None:
    slots = RetrySlots()
    for _ in range(5):
        slots.next_s(0.0, 0.5, 1.0)
    assert slots.next_s(100.0, 0.5, 1.0) == 0.5


def end_all(lateness: Lateness, seconds: float, count: int = 32) -> float:
    for number in range(count):
        lateness.came(WorkId(f"{number}"), 10.0)
        lateness.ended(WorkId(f"{number}"), 10.0 + seconds)
    return lateness.share


def test_less_is_admitted_while_works_end_late_and_more_again_when_they_do_not() -> None:
    lateness = Lateness(SLO_S)
    assert end_all(lateness, 1.0) == pytest.approx(0.5)
    assert end_all(lateness, 100.0) == LEAST_SHARE
    rising = [end_all(lateness, 0.4) for _ in range(40)]
    assert rising == sorted(rising)
    assert rising[-1] == 1.0


def test_one_late_work_of_32_changes_nothing() -> None:
    lateness = Lateness(SLO_S)
    end_all(lateness, 9.0, count=1)
    assert end_all(lateness, 0.4, count=31) == 1.0


def test_an_end_without_an_arrival_teaches_nothing() -> None:
    lateness = Lateness(SLO_S)
    for _ in range(100):
        lateness.ended(WorkId("unknown"), 50.0)
    assert lateness.share == 1.0

"""Who is let in under overload, and who is told when to come back: tables of times."""

from __future__ import annotations

import heapq
import itertools
import random

import pytest

from rag_accel.errors import BusyError
from rag_accel.serving.admission import LONGEST_S, Places, RequestAdmission


class PlayedPlaces(Places):
    """Places whose counts the tests turn, without a loop."""

    waiting = 0  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]


class PlayedAdmission(RequestAdmission):
    """An admission whose requests take places and leave them."""

    def __init__(self, most: int) -> None:
        self.places = PlayedPlaces(most)
        super().__init__(self.places)

    def ask(self, now: float, key: object) -> str:
        self.arrive(now, key)
        if self.places.running < self.places.most:
            self.places.running += 1
            return "running"
        self.places.waiting += 1
        return "waiting"

    def end(self, duration_s: float) -> None:
        self.note(duration_s)
        self.places.running -= 1


def refused_for(admission: RequestAdmission, now: float, key: object) -> float:
    with pytest.raises(BusyError) as raised:
        admission.arrive(now, key)
    assert raised.value.retry_after_s is not None
    return raised.value.retry_after_s


def busy(duration_s: float, most: int = 1) -> PlayedAdmission:
    """Return an admission whose places are taken by requests of a known duration."""
    admission = PlayedAdmission(most)
    admission.note(duration_s)
    for number in range(most):
        assert admission.ask(0.0, number) == "running"
    return admission


def test_each_refused_is_told_a_turn_behind_those_before() -> None:
    admission = busy(2.0)
    assert [refused_for(admission, 0.0, key) for key in "abc"] == [2.0, 4.0, 6.0]
    assert admission.num_promised == 3


def test_who_comes_back_too_early_is_told_the_rest_and_keeps_the_turn() -> None:
    admission = busy(2.0)
    refused_for(admission, 0.0, "a")
    refused_for(admission, 0.0, "b")
    assert refused_for(admission, 1.0, "b") == 3.0
    assert admission.num_promised == 2
    assert refused_for(admission, 1.0, "c") == 5.0  # behind both


def test_equal_requests_have_a_turn_each() -> None:
    admission = busy(2.0)
    refused_for(admission, 0.0, "a")
    admission.end(2.0)
    assert admission.ask(0.0, "x") == "running"
    assert admission.ask(2.0, "a") == "waiting"
    assert refused_for(admission, 2.0, "a") >= 2.0


def test_a_turn_that_nobody_takes_ends() -> None:
    admission = busy(2.0)
    refused_for(admission, 0.0, "a")
    refused_for(admission, 12.5, "b")
    assert admission.num_promised == 1  # of the second one
    assert refused_for(admission, 12.6, "a") == 4.0  # as a newcomer


def test_an_early_one_runs_where_a_place_is_free() -> None:
    admission = busy(2.0)
    refused_for(admission, 0.0, "a")
    admission.end(2.0)
    assert admission.ask(0.1, "a") == "running"
    assert admission.num_promised == 0


def test_the_time_to_stay_away_is_bounded_and_so_are_the_turns() -> None:
    admission = busy(10.0)
    told = [refused_for(admission, 0.0, ("client", number)) for number in range(1000)]
    assert told == sorted(told)
    assert max(told) == LONGEST_S
    assert admission.num_promised == LONGEST_S / 10


@pytest.mark.parametrize("most", [1, 4, 32])
@pytest.mark.parametrize("duration_s", [0.05, 0.5, 3.0])
def test_of_those_that_come_back_at_three_times_capacity_nearly_all_are_served(
    most: int, duration_s: float
) -> None:
    """A played minute: clients three times as many as places arrive at random, and return."""
    rng, admission, number = random.Random(0), PlayedAdmission(most), itertools.count()
    rate = 3 * most / duration_s
    events: list[tuple[float, int, str, int]] = []
    now = 0.0
    while now < 60 and len(events) < 20_000:
        now += rng.expovariate(rate)
        heapq.heappush(events, (now, next(number), "new", len(events)))
    last = now
    back = served = num_ended = 0
    while events:
        now, _, what, client = heapq.heappop(events)
        if now > last:  # later there is no load any more
            break
        if what == "end":
            num_ended += 1
            admission.end(duration_s)
            if admission.places.waiting:
                admission.places.waiting -= 1
                admission.places.running += 1
                heapq.heappush(events, (now + duration_s, next(number), "end", 0))
            continue
        back += what == "back"
        try:
            state = admission.ask(now, client)
        except BusyError as error:
            if what == "new":
                at = now + (error.retry_after_s or 0.0) + rng.uniform(0.0, 0.05)
                heapq.heappush(events, (at, next(number), "back", client))
            continue
        served += what == "back"
        if state == "running":
            heapq.heappush(events, (now + duration_s, next(number), "end", 0))
    assert served >= 0.95 * back, (served, back)
    assert back > 0
    # and the places were in use meanwhile
    assert num_ended >= 0.85 * last * most / duration_s, (num_ended, last)


def test_nobody_waits_while_threads_of_abandoned_requests_hold_all_places() -> None:
    admission = busy(0.1, most=2)
    admission.places.abandoned = 1
    admission.arrive(0.0, "a")  # the other place will be free
    admission.places.abandoned = 2
    after_s = refused_for(admission, 0.0, "b")
    assert refused_for(admission, after_s, "b") >= 1.0  # also one that comes back in time

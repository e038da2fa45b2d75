"""Predicted gains of recorded tables of calls, in whole seconds, are exact."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from profile_harness import any_request, primitive, recording, request

from rag_accel.profile.prediction import (
    CallPlace,
    Prediction,
    WatchedCall,
    predictions,
)
from rag_accel.profile.recording import RecordedPrimitive, RecordedRequest, Recording

Calls = dict[str, WatchedCall]


def in_row(*times_s: float, kind: str = "SEARCHING", engine: str = "e") -> RecordedRequest:
    """Return a request of calls ``leaf0``, ``leaf1``, ... one right after the other."""
    made: list[RecordedPrimitive] = []
    at = 0.0
    for number, time_s in enumerate(times_s):
        after = (f"leaf{number - 1}",) if number else ()
        span = (at, at + time_s)
        made.append(primitive(f"leaf{number}", *span, *after, kind=kind, engine=engine))
        at += time_s
    return request(*made, origin="program")


def placed(number: int, *places: CallPlace) -> WatchedCall:
    return WatchedCall(number, "e", places=places)


def group_of(count: int, *, group: int = 1, at_once: int = 8, obstacle: str = "") -> Calls:
    """Return calls ``leaf0``, ``leaf1``, ... of one composite."""
    return {f"leaf{n}": placed(n, CallPlace(group, n, at_once, obstacle)) for n in range(count)}


def plain(count: int, start: int = 0) -> Calls:
    return {f"leaf{n}": WatchedCall(n, "e") for n in range(start, start + count)}


def predicted(found: Recording, calls: Calls) -> dict[str, Prediction]:
    return {row.option: row for row in predictions(found, calls)}


def default_of(found: Recording | RecordedRequest, calls: Calls) -> Prediction:
    return predictions(found if isinstance(found, Recording) else recording(found), calls)[0]


@given(any_request())
def test_a_program_on_which_nothing_acts_gains_nothing(one: RecordedRequest) -> None:
    calls = {each.name: WatchedCall(n, "e") for n, each in enumerate(one.primitives)}
    rows = predicted(recording(one), calls)
    assert [row.gain for row in rows.values()] == [1.0] * 4


@pytest.mark.parametrize(
    ("times_s", "members", "at_once", "gain"),
    [
        ((1, 3, 2, 4), 3, 8, 10 / 7),  # as long as the longest, and what comes after
        ((5, 1, 1), 2, 8, 7 / 6),  # what comes after waits for all
        ((1, 1, 1, 1, 1), 5, 2, 5 / 3),  # no more together than the composite allows
    ],
)
def test_calls_of_a_composite_run_together(
    times_s: tuple[float, ...], members: int, at_once: int, gain: float
) -> None:
    calls = group_of(members, at_once=at_once) | plain(len(times_s) - members, members)
    row = default_of(in_row(*times_s), calls)
    assert row.gain == pytest.approx(gain)
    assert row.reason == "1 times calls of a composite side by side"


def test_code_between_two_calls_passes_in_each() -> None:
    first, second = primitive("leaf0", 0, 2), primitive("leaf1", 3, 5, "leaf0")
    found = recording(request(first, second, ended=6, origin="program"))
    # The second begins a second after the composite did; the program's last second remains.
    assert default_of(found, group_of(2)).gain == pytest.approx(6 / 4)


def test_pieces_of_a_call_stay_in_order() -> None:
    found = recording(in_row(1, 2, 1, 1, 2, 1))
    places = [CallPlace(1, 0, 8)] * 3 + [CallPlace(1, 1, 8)] * 3
    calls = {f"leaf{n}": placed(n // 3, place) for n, place in enumerate(places)}
    assert default_of(found, calls).gain == pytest.approx(8 / 4)


def test_composites_inside_of_composites_spread_both() -> None:
    found = recording(in_row(1, 1, 1, 1, 4))
    calls = {
        f"leaf{n}": placed(n, CallPlace(1, n // 2, 8), CallPlace(2 + n // 2, n % 2, 8))
        for n in range(4)
    }
    assert default_of(found, calls | plain(1, 4)).gain == pytest.approx(8 / 5)


def test_a_composite_with_an_obstacle_gains_only_once_its_classes_are_named() -> None:
    found = recording(in_row(1, 1, 2))
    rows = predicted(found, group_of(2, obstacle="a.B is not known") | plain(1, 2))
    assert rows["accelerate()"].gain == 1.0
    named = rows["thread_safe_classes"]
    assert named.gain == pytest.approx(4 / 3)
    assert named.reason.endswith("side by side: a.B is not known")


def test_an_equal_call_takes_no_time_where_a_cache_answers() -> None:
    one = in_row(1, 3)
    # The same calls by other names, ten seconds later.
    other = request(
        primitive("leaf2", 10, 11), primitive("leaf3", 11, 14, "leaf2"), arrived=10, id=2
    )
    calls = plain(4) | {
        name: WatchedCall(9, "embedder", "cache", asked=7) for name in ("leaf0", "leaf2")
    }
    row = default_of(recording(one, other), calls)
    assert row.gain == pytest.approx(8 / 7)
    assert row.reason == "1 times a cached answer of an equal call"
    calls["leaf2"] = replace(calls["leaf2"], asked=8)
    assert default_of(recording(one, other), calls).gain == 1.0


def test_a_gain_is_unknown_where_engines_would_compute_much_of_the_time() -> None:
    calls = {"leaf0": WatchedCall(0, "e", "engine"), "leaf1": WatchedCall(1, "e")}
    row = default_of(in_row(6, 2), calls)
    assert row.gain is None
    assert row.reason.startswith("between 1.00x and 4.00x: ")
    # It is the lower bound where they would compute little.
    assert default_of(in_row(1, 19), calls).gain == 1.0


def test_searches_for_one_text_in_a_row_could_run_side_by_side() -> None:
    found = recording(in_row(2, 3, 5))
    calls = {f"leaf{n}": WatchedCall(n, "e", asked=(7, 7, 8)[n]) for n in range(3)}
    rows = predicted(found, calls)
    assert rows["accelerate()"].gain == 1.0
    assert rows["searches for one text side by side"].gain == pytest.approx(10 / 8)


def test_calls_that_overlap_are_no_searches_in_a_row() -> None:
    first, second = primitive("leaf0", 0, 4), primitive("leaf1", 1, 3)
    rest = primitive("leaf2", 4, 5, "leaf0")
    kinds = [replace(each, kind="SEARCHING") for each in (first, second, rest)]
    calls = {f"leaf{n}": WatchedCall((0, 1, 0)[n], "e", asked=7) for n in range(3)}
    rows = predicted(recording(request(*kinds, origin="program")), calls)
    assert rows["searches for one text side by side"].gain == 1.0


def test_users_that_ask_at_once_share_the_steps_of_an_engine() -> None:
    several = [
        request(primitive(f"leaf{n}", 10 * n, 10 * n + 2, engine="m"), arrived=10 * n, id=n + 1)
        for n in range(4)
    ]
    calls = {f"leaf{n}": WatchedCall(n, "m", "engine") for n in range(4)}
    row = predicted(recording(*several), calls)["all users at once, in shared steps"]
    assert row.gain == pytest.approx(8 / 2)
    assert row.reason.startswith("at most: the 4 requests at once")

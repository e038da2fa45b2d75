"""How many texts a call to a server holds, by what calls took."""

from __future__ import annotations

import pytest

from rag_accel.engines.embedding.call_costs import CallCosts

MS = 1e-3


def costs(*calls: tuple[int, float], sending_ms: float | None = 2.0) -> CallCosts:
    """Return the costs of calls of so many texts and milliseconds."""
    found = CallCosts()
    for texts, milliseconds in calls:
        found.note(texts, milliseconds * MS, None if sending_ms is None else sending_ms * MS)
    return found


@pytest.mark.parametrize(
    ("calls", "text_ms"),
    [
        ([], 0.0),
        ([(1, 50.0)], 0.0),
        ([(1, 50.0), (32, 50.0)], 0.0),
        ([(1, 50.0), (32, 81.0)], 1.0),
        ([(1, 90.0), (1, 50.0), (32, 112.0), (32, 81.0)], 1.0),  # the shortest of each size
        ([(32, 10.0), (1, 50.0)], 0.0),  # a first call connects
    ],
)
def test_a_texts_time_is_between_the_shortest_calls(
    calls: list[tuple[int, float]], text_ms: float
) -> None:
    assert costs(*calls).text_s == pytest.approx(text_ms * MS)


def test_a_server_that_slows_down_is_noticed() -> None:
    found = costs((1, 50.0), (32, 50.0))
    for _ in range(100):
        found.note(32, 360 * MS)
    assert found.text_s == pytest.approx(10 * MS, rel=0.1)


@pytest.mark.parametrize(
    ("calls", "sending_ms", "callers", "expected"),
    [
        ([(1, 50.0), (32, 50.0)], 2.0, 64, None),  # texts cost nothing
        ([(1, 50.0), (32, 81.0)], None, 64, None),  # nothing is known of sending
        ([(1, 50.0), (32, 81.0)], 2.0, 32, 8),
        ([(1, 50.0), (32, 81.0)], 2.0, 2, 2),
        ([(1, 50.0), (32, 205.0)], 2.0, 64, 1),  # a text costs more than a call
    ],
)
def test_calls_hold_as_many_texts_as_pay(
    calls: list[tuple[int, float]], sending_ms: float | None, callers: int, expected: int | None
) -> None:
    found = costs(*calls, sending_ms=sending_ms)
    found.note_callers(callers)
    assert found.texts_a_call == expected


def test_callers_that_are_gone_count_less_and_less() -> None:
    found = costs((1, 50.0), (32, 81.0))
    found.note_callers(32)
    for _ in range(500):
        found.note_callers(2)
    assert found.texts_a_call == 2


@pytest.mark.parametrize(("callers", "expected_ms"), [(1, 0.0), (2, 2.0), (4, 6.0), (32, 12.0)])
def test_a_call_waits_no_longer_for_others_than_their_sending_takes(
    callers: int, expected_ms: float
) -> None:
    found = costs((1, 50.0))
    found.note_callers(callers)
    assert found.wait_s(12 * MS) == pytest.approx(expected_ms * MS)


def test_a_call_waits_while_nothing_is_known_of_sending() -> None:
    assert costs((1, 50.0), sending_ms=None).wait_s(12 * MS) == pytest.approx(12 * MS)


def test_callers_who_wait_longer_alone_share_again() -> None:
    found = costs((1, 50.0), (32, 205.0))
    found.note_callers(32)
    assert found.texts_a_call == 1
    found.note_wait(100 * MS, is_shared=True)
    found.note_wait(200 * MS, is_shared=False)
    assert found.texts_a_call == 4
    for _ in range(2000):
        found.note_wait(100 * MS, is_shared=True)
    assert found.texts_a_call == 1  # tried again: the server may bear more by now

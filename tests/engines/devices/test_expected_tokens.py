"""What live requests will still bring is learned from those that have ended."""

from __future__ import annotations

import pytest

from rag_accel.engines.devices.admission import ExpectedTokens


@pytest.mark.parametrize(
    ("ended", "mean"),
    [
        ([], 0.0),
        ([10], 10.0),
        ([10, 20], 15.0),
        ([10, 0], 5.0),  # one that embeds nothing counts, too
        ([0] * 16 + [16], 1.0),  # the seventeenth counts a sixteenth
    ],
)
def test_the_mean_is_learned_from_ended_requests(ended: list[int], mean: float) -> None:
    to_come = ExpectedTokens()
    for number, tokens in enumerate(ended):
        request = f"r{number}"
        to_come.look("asking", {request})
        if tokens:
            to_come.brought(request, tokens)
        to_come.look("asking", set())
    assert to_come.tokens_a_request == pytest.approx(mean)


def test_what_a_request_has_brought_is_not_to_come() -> None:
    to_come = ExpectedTokens()
    to_come.brought("old", 10)
    assert to_come.look("x", {"a", "b", "c"}) == 30
    to_come.brought("b", 25)
    assert to_come.look("x", {"a", "b", "c"}) == 20


def test_a_request_with_a_short_text_lacks_nothing_where_each_brings_one_work() -> None:
    to_come = ExpectedTokens()
    to_come.brought("old", 10)
    to_come.brought("a", 4)
    assert to_come.look("x", {"a"}) == 0


def test_a_request_with_one_of_two_usual_works_lacks_the_other() -> None:
    to_come = ExpectedTokens()
    to_come.brought("old", 10)
    to_come.brought("old", 30)
    to_come.brought("a", 4)
    assert to_come.look("x", {"a"}) == 20


def test_until_one_has_ended_those_that_live_stand_for_all() -> None:
    to_come = ExpectedTokens()
    to_come.brought("a", 10)
    assert to_come.look("x", {"a", "b"}) == 10


def test_a_refused_request_teaches_nothing() -> None:
    to_come = ExpectedTokens()
    to_come.brought("old", 10)
    to_come.look("other", {"program"})  # it lives before it asks
    assert to_come.look("program", {"program"}) == 0
    to_come.refused("program")
    assert to_come.look("other", {"program"}) == 0
    to_come.look("other", set())
    assert to_come.tokens_a_request == 10

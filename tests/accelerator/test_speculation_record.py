"""What is learned of provisional results: how likely they are final, and what was wasted."""

from __future__ import annotations

import pytest

from rag_accel.requests.speculation_record import (
    ASKED_AGAIN,
    LEAST_CHANCE,
    MOST_REFUSED,
    UNTRUSTED_FROM,
    Seen,
    SpeculationRecord,
)


def seen(done: float, *ids: str, unchanged: float = 0.0) -> Seen:
    return Seen(done, unchanged, 0.1, ids)


def taught(*searches: tuple[str, str], done: float = 0.2) -> SpeculationRecord:
    """Return a record of searches: what each had found at a border, and in the end."""
    record = SpeculationRecord()
    for early, final in searches:
        record.search_ended([seen(done, early)], (final,), 0.1)
        record.answer_ended(0.2)
    return record


def test_nothing_is_trusted_before_it_was_seen_to_be_right() -> None:
    assert taught().stakes(seen(0.2, "a")) is None


def test_what_was_right_for_long_is_trusted() -> None:
    stakes = taught(*[("a", "a")] * 20).stakes(seen(0.2, "b"))
    assert stakes is not None
    assert stakes.chance == pytest.approx((20 + 3 * 21 / 23) / 23)
    assert stakes.left_s == 0.1


def test_other_shares_of_a_search_are_learned_apart() -> None:
    record = taught(*[("a", "a")] * 20)
    assert record.stakes(seen(0.9, "b")) is None


def test_what_has_changed_lately_is_learned_apart_once_it_was_seen() -> None:
    record = taught(*[("a", "a")] * 20)
    later = seen(0.2, "b", unchanged=0.1)
    assert record.chances.of(later) == pytest.approx(21 / 23)
    for _ in range(20):
        record.search_ended([later], ("c",), 0.1)
    assert record.chances.of(later) < 0.1
    assert record.chances.of(seen(0.2, "b")) > 0.9


def test_the_order_of_documents_counts() -> None:
    record = SpeculationRecord()
    for _ in range(20):
        record.search_ended([seen(0.2, "a", "b")], ("b", "a"), 0.1)
    assert record.chances.of(seen(0.2, "x")) == pytest.approx(3 / 23 / 23)


def test_what_changes_for_the_worse_is_trusted_no_more() -> None:
    record = taught(*[("a", "a")] * 30, *[("a", "b")] * 31)
    assert record.stakes(seen(0.2, "a")) is None


def test_a_share_of_prompts_and_seconds_may_be_wasted() -> None:
    record = taught(*[("a", "a")] * 60)
    for _ in range(9):
        assert record.stakes(seen(0.2, "a")) is not None
        record.dropped(0.01, 1.0, was_right=False)
    record.dropped(0.01, 1.0, was_right=False)
    assert record.stakes(seen(0.2, "a")) is None


def test_the_more_is_wasted_the_surer_a_result_must_be() -> None:
    record = taught(*[("a", "a")] * 70, *[("a", "b")] * 30)
    assert record.stakes(seen(0.2, "a")) is not None
    for _ in range(9):
        record.dropped(0.001, 1.0, was_right=False)
    assert record.stakes(seen(0.2, "a")) is None


def test_a_beginning_that_the_next_prompt_shares_is_not_wasted() -> None:
    record = taught(*[("a", "a")] * 20)
    for _ in range(20):
        record.dropped(0.001, 0.0, was_right=False)
    assert record.stakes(seen(0.2, "a")) is not None


def test_wasted_seconds_count_as_well() -> None:
    record = taught(*[("a", "a")] * 50)
    record.dropped(1.1, 0.0, was_right=False)
    assert record.stakes(seen(0.2, "a")) is None


def test_speculation_that_is_never_taken_over_turns_itself_off() -> None:
    record = taught(*[("a", "a")] * 500)
    ended = [record.dropped(0.001, 0.0, was_right=True) for _ in range(MOST_REFUSED)]
    assert ended == [False] * (MOST_REFUSED - 1) + [True]
    assert record.stakes(seen(0.2, "a")) is None
    assert not record.asks()


def test_a_search_that_is_short_beside_its_answer_is_not_cut() -> None:
    record = SpeculationRecord()
    record.search_ended([seen(0.2, "a")], ("a",), 0.01)
    record.answer_ended(1.0)
    asked = [record.asks() for _ in range(2 * ASKED_AGAIN)]
    assert sum(asked) == 2


def test_a_search_that_is_never_sure_is_seldom_cut() -> None:
    record = taught(*[("a", "b")] * UNTRUSTED_FROM)
    assert record.chances.best < LEAST_CHANCE
    assert sum(record.asks() for _ in range(2 * ASKED_AGAIN)) == 2

"""The tokens that are computed again are chosen by their scores, within the number allowed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.kv.selection import QuestionGuided, TokenSelector, without

PLACES = [range(2, 5), range(7, 9)]
SCORES = [9.0, 9.0, 0.1, 0.4, 0.2, 9.0, 9.0, 0.3, 0.4, 9.0]


@pytest.mark.parametrize(
    ("count", "chosen"), [(0, []), (1, [3]), (2, [3, 8]), (3, [3, 7, 8]), (9, [2, 3, 4, 7, 8])]
)
def test_the_question_chooses_what_it_looks_at(count: int, chosen: list[int]) -> None:
    assert list(QuestionGuided().choose(SCORES, PLACES, count)) == chosen


@pytest.mark.parametrize(
    ("count", "chosen"),
    [(0, []), (1, [3]), (2, [2, 3]), (3, [2, 3, 8]), (5, [2, 3, 4, 7, 8])],
    ids=["none", "no block fits", "one", "and part of another text's", "all"],
)
def test_blocks_are_chosen_by_the_sum_of_their_scores(count: int, chosen: list[int]) -> None:
    assert list(QuestionGuided(block=2).choose(SCORES, PLACES, count)) == chosen


@pytest.mark.parametrize("selector", [QuestionGuided(), QuestionGuided("question")])
@pytest.mark.parametrize("count", [0, 2, 99])
def test_a_choice_is_among_the_texts(selector: TokenSelector, count: int) -> None:
    chosen = selector.choose(SCORES, PLACES, count)
    assert len(chosen) == min(count, 5)
    assert list(chosen) == sorted(set(chosen))
    assert set(chosen) <= {2, 3, 4, 7, 8}


def covered(ranges: Sequence[range]) -> list[int]:
    return [at for one in ranges for at in one]


@given(st.sets(st.integers(0, 12)))
def test_what_is_left_and_what_was_taken_are_all(chosen: set[int]) -> None:
    left = without(PLACES, sorted(chosen))
    assert covered(left) == [at for at in covered(PLACES) if at not in chosen]
    assert all(len(one) for one in left)

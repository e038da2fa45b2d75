"""Fused ranks are those of the paper's formula, and depend on nothing but the arguments."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from rag_accel.engines.retrieval.hybrid.fusion import FusedItem, reciprocal_rank_fusion
from rag_accel.errors import ConfigError

_RANKINGS = st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True), max_size=4)
_WEIGHT = st.one_of(st.just(0), st.floats(0.01, 100))


def _items(fused: list[FusedItem[str]]) -> list[str]:
    return [one.item for one in fused]


def _exact(rankings: list[list[str]], weights: list[float], k: int) -> dict[str, Fraction]:
    """Compute each score as a fraction, item by item."""
    return {
        item: sum(
            (
                Fraction(weight) / (k + ranking.index(item) + 1)
                for ranking, weight in zip(rankings, weights, strict=True)
                if item in ranking
            ),
            start=Fraction(0),
        )
        for item in {item for ranking in rankings for item in ranking}
    }


def test_the_example_worked_by_hand() -> None:
    fused = reciprocal_rank_fusion([["a", "b", "c"], ["c", "a"]])
    assert fused == [
        FusedItem("a", 1 / 61 + 1 / 62),
        FusedItem("c", 1 / 63 + 1 / 61),
        FusedItem("b", 1 / 62),
    ]


@given(_RANKINGS, st.data(), st.integers(0, 100))
def test_scores_are_those_of_the_formula_and_fall(
    rankings: list[list[str]], data: st.DataObject, k: int
) -> None:
    weights = data.draw(st.lists(_WEIGHT, min_size=len(rankings), max_size=len(rankings)))
    fused = reciprocal_rank_fusion(rankings, weights, k)
    expected = {i: score for i, score in _exact(rankings, weights, k).items() if score}
    assert {one.item for one in fused} == expected.keys()
    assert len(fused) == len(expected)
    for one in fused:
        assert math.isclose(one.score, expected[one.item], rel_tol=1e-12)
    scores = [one.score for one in fused]
    assert scores == sorted(scores, reverse=True)


@given(_RANKINGS)
def test_equal_scores_are_ordered_by_first_mention(rankings: list[list[str]]) -> None:
    mentioned = list(dict.fromkeys(item for ranking in rankings for item in ranking))
    fused = reciprocal_rank_fusion(rankings)
    for one, following in pairwise(fused):
        if one.score == following.score:
            assert mentioned.index(one.item) < mentioned.index(following.item)


@given(_RANKINGS, st.randoms(use_true_random=False))
def test_the_order_of_the_rankings_changes_no_score(rankings: list[list[str]], random: Any) -> None:
    shuffled = random.sample(rankings, len(rankings))
    scores = {one.item: one.score for one in reciprocal_rank_fusion(rankings)}
    assert {one.item: one.score for one in reciprocal_rank_fusion(shuffled)} == scores


@given(_RANKINGS, st.lists(st.sampled_from("abcxyz"), unique=True))
def test_a_ranking_of_weight_0_is_as_if_it_were_not_there(
    rankings: list[list[str]], other: list[str]
) -> None:
    weights = [1.0] * len(rankings)
    fused = reciprocal_rank_fusion([other, *rankings], [0, *weights])
    assert fused == reciprocal_rank_fusion(rankings, weights)


@given(st.lists(st.sampled_from("abc")))
def test_a_repetition_counts_once_and_takes_no_rank(ranking: list[str]) -> None:
    once = list(dict.fromkeys(ranking))
    assert reciprocal_rank_fusion([ranking, "cab"]) == reciprocal_rank_fusion([once, "cab"])


@given(_RANKINGS, st.integers(0, 3), st.integers(0, 7))
def test_rising_in_one_ranking_never_lowers_a_score(
    rankings: list[list[str]], which: int, place: int
) -> None:
    if which >= len(rankings) or not 0 < place < len(rankings[which]):
        return
    better = [list(ranking) for ranking in rankings]
    row = better[which]
    item = row[place]
    row[place - 1], row[place] = row[place], row[place - 1]
    before = {one.item: one.score for one in reciprocal_rank_fusion(rankings)}
    after = {one.item: one.score for one in reciprocal_rank_fusion(better)}
    assert after[item] > before[item]


def test_nothing_fused_is_nothing() -> None:
    assert reciprocal_rank_fusion([]) == []
    assert reciprocal_rank_fusion([[], []], [1, 2]) == []


@pytest.mark.parametrize(
    "rest",
    [
        {"k": -1},
        {"k": math.nan},
        {"k": math.inf},
        {"k": "60"},
        {"k": True},
        {"weights": [1]},
        {"weights": [1, 1, 1]},
        {"weights": [1, -0.1]},
        {"weights": [1, math.nan]},
        {"weights": [1, "1"]},
        {"weights": [1, 1e10]},
    ],
)
def test_a_bad_argument_is_named(rest: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        reciprocal_rank_fusion(["ab", "ba"], **rest)
    assert str(caught.value.where).startswith(next(iter(rest)))
    assert caught.value.valid


def test_numbers_of_numpy_are_numbers() -> None:
    weights: Any = np.asarray([1, 0.5], dtype=np.float32)
    whole: Any = np.int64
    fused = reciprocal_rank_fusion(["ab", "ba"], weights, whole(60))
    assert _items(fused) == ["a", "b"]

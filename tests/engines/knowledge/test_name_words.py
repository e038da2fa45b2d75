"""The words of names that come and go weigh what those of names that were always there do."""

from __future__ import annotations

import random

import numpy as np
import pytest
from numpy.typing import NDArray

from rag_accel.engines.knowledge.words import NameWords

VOCABULARY = [f"word{number}" for number in range(40)]


def drawn_names(source: random.Random, num: int) -> list[str]:
    """Return names of up to six words, some of them of none."""
    return [
        " ".join(source.choices(VOCABULARY, k=source.randrange(7))) + "_" * number
        for number in range(num)
    ]


def edited(
    names: list[str], num_old: int, was: NDArray[np.bool_], now: NDArray[np.bool_]
) -> NameWords:
    """Return the words of old names that came or went, and of new ones."""
    words = NameWords.of(names[:num_old], was)
    return words.edited(names[num_old:], np.arange(num_old), now)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("is_merged", [False, True])
def test_weights_and_totals_are_those_of_words_made_anew_bit_by_bit(
    seed: int, is_merged: bool
) -> None:
    source = random.Random(seed)
    names = drawn_names(source, 300)
    masks = np.random.default_rng(seed)
    was, now = masks.random(200) < 0.8, masks.random(300) < 0.8
    found, made = edited(names, 200, was, now), NameWords.of(names, now)
    if is_merged:
        found = found.merged()
    there = np.flatnonzero(now)
    some = there[::7]
    expected = made._totals(there)
    assert np.array_equal(found._totals(some), expected[::7])
    for _ in range(3):  # by and by those of all are made
        assert np.array_equal(found._totals(there), expected)
    for text in (*VOCABULARY, " ".join(VOCABULARY[:5]), "unknown", ""):
        for k in (1, 5, 300):
            assert np.array_equal(
                found.find(text, k, lambda ids: ids), made.find(text, k, lambda ids: ids)
            )


def test_words_that_only_later_versions_have_are_not_found() -> None:
    there = np.ones(2, np.bool_)
    words = NameWords.of(["a", "b"], there)
    later = words.edited(["c"], np.empty(0, np.int64), np.ones(3, np.bool_))
    for text in ("c", "C c"):
        assert len(words.find(text, 3, lambda ids: ids)) == 0
        assert later.find(text, 3, lambda ids: ids).tolist() == [2]


def test_an_earlier_version_that_is_asked_after_a_later_one_has_its_own_names() -> None:
    none = np.empty(0, np.int64)
    words = NameWords.of(["a", "b"], np.ones(2, np.bool_))
    later = words.edited(["c", "d"], none, np.ones(4, np.bool_))
    earlier = words.edited(["c"], none, np.ones(3, np.bool_))
    assert [one.find("c", 3, lambda ids: ids).tolist() for one in (later, earlier)] == [[2], [2]]
    assert [one.find("d", 3, lambda ids: ids).tolist() for one in (later, earlier)] == [[3], []]


def test_words_of_several_edits_after_each_other_are_those_of_one() -> None:
    source = random.Random(3)
    names = drawn_names(source, 120)
    words = NameWords.of(names[:20], np.ones(20, np.bool_))
    for num in range(30, 121, 10):
        now = np.ones(num, np.bool_)
        words = words.edited(names[num - 10 : num], np.empty(0, np.int64), now).merged()
    made = NameWords.of(names, np.ones(120, np.bool_))
    every = np.arange(120)
    assert np.array_equal(words._totals(every), made._totals(every))
    for word in VOCABULARY:
        assert np.array_equal(
            words.find(word, 120, lambda ids: ids), made.find(word, 120, lambda ids: ids)
        )

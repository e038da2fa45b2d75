"""The words of names that come and go weigh what those of names that were always there do."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rag_accel.engines.knowledge.words import NameWords

VOCABULARY = [f"word{number}" for number in range(40)]


def drawn_names(source: random.Random, num: int) -> list[str]:
    """Return names of up to six words, some of them of none."""
    return [
        " ".join(source.choices(VOCABULARY, k=source.randrange(7))) + "_" * number
        for number in range(num)
    ]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_renamed", [False, True])
def test_weights_and_totals_are_those_of_words_made_anew_bit_by_bit(
    seed: int, is_renamed: bool
) -> None:
    source = random.Random(seed)
    names = drawn_names(source, 300)
    now = np.random.default_rng(seed).random(300) < 0.8
    there = np.flatnonzero(now)
    made = NameWords.of([names[place] for place in there])
    found = NameWords.of(names[:200]).edited(names[200:], np.arange(200), now)
    places = there
    if is_renamed:
        found, places = found.renamed(there), np.arange(len(there))
    expected = made._totals(np.arange(len(there)))
    assert np.array_equal(found._totals(places[::7]), expected[::7])
    for _ in range(3):  # by and by those of all are made
        assert np.array_equal(found._totals(places), expected)
    for text in (*VOCABULARY, " ".join(VOCABULARY[:5]), "unknown", ""):
        for k in (1, 5, 300):
            wanted = places[made.find(text, k, lambda ids: ids)]
            assert np.array_equal(found.find(text, k, lambda ids: ids), wanted)


def test_words_that_only_later_versions_have_are_not_found() -> None:
    words = NameWords.of(["a", "b"])
    later = words.edited(["c"], np.empty(0, np.int64), np.ones(3, np.bool_))
    assert len(words.find("c", 3, lambda ids: ids)) == 0
    assert later.find("C c", 3, lambda ids: ids).tolist() == [2]


def test_words_of_names_that_went_are_dropped() -> None:
    words = NameWords.of(["a b", "c b"]).edited([], np.arange(2), np.array([False, True]))
    assert dict(words.renamed(np.array([1]))._ids) == {"b": 0, "c": 1}

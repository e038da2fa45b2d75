"""Test how text is cut into sentences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.sample.sentences import split_sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It runs. It stops! Does it? Yes.", ["It runs.", "It stops!", "Does it?", "Yes."]),
        ('He said "go." Then he left.', ['He said "go."', "Then he left."]),
        ("Use tools, e.g. Python, i.e. It works.", ["Use tools, e.g. Python, i.e. It works."]),
        ("Ask Dr. Smith or J. Doe. Then go.", ["Ask Dr. Smith or J. Doe.", "Then go."]),
        ("Since version 3.8. The rest is old.", ["Since version 3.8.", "The rest is old."]),
        ("It is done. json.dumps writes it.", ["It is done.", "json.dumps writes it."]),
        ("The file. mode: how it opens.", ["The file.", "mode: how it opens."]),
        ("Set the size. size is in bytes.", ["Set the size.", "size is in bytes."]),
        ("Cups, pots, etc. are kept ... or not.", ["Cups, pots, etc. are kept ... or not."]),
        ("A wrapped\nline goes on.", ["A wrapped line goes on."]),
        ("A heading\n\nA text", ["A heading", "A text"]),
        ("Either:\n- red wine\n* beer\n1. Water", ["Either:", "red wine", "beer", "Water"]),
        ("", []),
    ],
)
def test_text_is_cut_at_the_ends_of_sentences(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


@given(st.text())
def test_only_white_space_and_bullets_are_lost(text: str) -> None:
    kept = "".join("".join(split_sentences(text)).split())
    letters = [letter for letter in kept if letter.isalpha()]
    assert letters == [letter for letter in text if letter.isalpha()]

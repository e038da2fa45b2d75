"""Questions are made of documents."""

from __future__ import annotations

import pytest

from rag_accel.engine_api import Document
from rag_accel.errors import ConfigError
from rag_accel.sample import make_questions

DOCUMENTS = (
    Document(
        "pump.md",
        "Pump manual: The filter is a fine mesh of steel. If the pressure drops below two bar, "
        "close the valve at once and then wait for the pump to stop. Clean it. Clean it.",
        {"title": "Pump manual"},
    ),
    Document("well.md", "Well: The well is dry in a hot summer.", {"title": "Well"}),
)


def test_the_sentences_of_a_users_documents_are_asked_about_in_turn() -> None:
    questions = make_questions(DOCUMENTS, 8)
    assert [one.text for one in questions] == [
        'What does Pump manual say about "The filter is a fine mesh of steel"?',
        'What does Well say about "The well is dry in a hot summer"?',
        'What does Pump manual say about "If the pressure drops below two bar, close the valve at'
        ' once"?',
    ]
    assert [str(one.source_id)[:4] for one in questions] == ["pump", "well", "pump"]


def test_no_more_are_made_than_asked_for_and_none_twice() -> None:
    assert len(make_questions(DOCUMENTS, 2)) == 2
    assert len(make_questions([*DOCUMENTS, *DOCUMENTS], 8)) == 3


def test_a_long_name_is_shortened_in_questions() -> None:
    text = "If the well is dry, wait for rain."
    (question,) = make_questions([Document("a", text, {"title": "Pump" * 1000})], 1)
    assert len(question.text) < 300


def test_a_small_corpus_gives_what_it_has() -> None:
    assert make_questions([], 5) == ()
    assert make_questions([Document("a", "Yes.")], 5) == ()


def test_a_number_below_one_is_an_error() -> None:
    with pytest.raises(ConfigError, match="count"):
        make_questions([], 0)

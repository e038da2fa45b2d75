"""Answers over reused texts are scored against gold ones by the metrics' definitions."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from fake_runner import tokenizer

from bench.kv.answers import (
    exact_match,
    f1,
    gold_questions,
    normalised_f1,
)
from rag_accel.engine_api import Document

DOCUMENTS = tuple(
    Document(name, f"{name} is a word.\nIt has letters, and stands in lines.\n" * 4)
    for name in ("Alpha", "Beta", "Gamma", "Delta")
)


@pytest.mark.parametrize(
    ("answer", "gold", "match", "shared"),
    [
        ("3776", "3776", 1.0, 1.0),
        (" The 3776. ", "3776", 1.0, 1.0),
        ("It is 3776.", "3776", 0.0, 0.5),
        ("red red blue", "red green", 0.0, 0.4),
        ("", "3776", 0.0, 0.0),
        ("3777", "3776", 0.0, 0.0),
    ],
)
def test_scores_count_words(answer: str, gold: str, match: float, shared: float) -> None:
    assert exact_match(answer, gold) == match
    assert f1(answer, gold) == pytest.approx(shared)


def test_normalised_f1_is_equation_11_of_the_paper() -> None:
    # The paper's own example: TriviaQA, Mistral-7B, CacheBlend at 15 %.
    assert normalised_f1(0.781, 0.852, 0.712) == pytest.approx(0.492, abs=0.002)
    assert normalised_f1(0.852, 0.852, 0.712) == pytest.approx(1.0)
    assert normalised_f1(0.5, 0.7, 0.7) is None
    assert normalised_f1(0.5, 0.6, 0.7) is None


def test_the_gold_answer_stands_in_the_text_about_the_place_that_is_asked_for() -> None:
    made = gold_questions(tokenizer(), DOCUMENTS, 4, (200, 300), (2, 4), seed=3)
    assert made == gold_questions(tokenizer(), DOCUMENTS, 4, (200, 300), (2, 4), seed=3)
    for one in made:
        place = one.prompt.question.removeprefix("What is the access code of the ").split()[0]
        assert one.answer.startswith(f"The access code of the {place} depot is ")
        assert sum(one.answer in text for text in one.prompt.texts) == 1
        assert sum("access code" in text for text in one.prompt.texts) == len(one.prompt.texts)

"""Prompts are made of the texts that a search finds for questions about documents."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from fake_runner import tokenizer

from rag_accel.engine_api import Document
from rag_accel.fidelity.prompts import cut_texts, searched_prompts, word_search

DOCUMENTS = [
    Document("Fuji", "The height of Mount Fuji is 3776 metres, said the guide.", {"title": "Fuji"}),
    Document("Crane", "A crane lifts loads by a rope over a pulley.", {"title": "Crane"}),
    Document("Pump", "The filter of the pump is cleaned every month.", {"title": "Pump"}),
]
TEXTS = [document.text for document in DOCUMENTS]


def test_texts_are_cut_of_documents_one_behind_the_other() -> None:
    found = cut_texts(tokenizer(), DOCUMENTS, 16)
    ids = [tokenizer()(text, add_special_tokens=False)["input_ids"] for text in found]
    assert all(14 <= len(each) <= 18 for each in ids)
    whole = "".join("".join(TEXTS).split())
    joined = "".join("".join(found).split())
    assert whole.startswith(joined)
    assert len(whole) - len(joined) < 32


def test_equal_texts_are_there_once() -> None:
    repeated = [DOCUMENTS[0]] * 5
    size = len(tokenizer()(TEXTS[0] + "\n", add_special_tokens=False)["input_ids"])
    assert cut_texts(tokenizer(), repeated, size) == [TEXTS[0]]


def test_a_search_by_words_finds_the_texts_that_share_most_of_them_first() -> None:
    search = word_search(TEXTS, 2)
    assert search("Over which pulley does the crane lift loads?")[0] == TEXTS[1]
    assert len(search("Is the filter of the crane cleaned?")) == 2
    assert search("Xylophone?") == []


def test_a_prompt_is_of_the_texts_that_are_found_for_its_question_in_their_order() -> None:
    asked: list[str] = []

    def search(question: str) -> list[str]:
        asked.append(question)
        return TEXTS[::-1]

    found = searched_prompts(DOCUMENTS, search, 2)
    assert [prompt.question for prompt in found] == asked
    assert len(set(asked)) == 2
    assert all(prompt.texts == tuple(TEXTS[::-1]) for prompt in found)

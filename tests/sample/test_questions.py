"""Test the questions that are made from documents and those that are loaded."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from rag_accel.engine_api import Document
from rag_accel.errors import ConfigError, DocumentError
from rag_accel.sample import LoadReport, load_folder, load_questions, make_questions


def _longest_shared_run(question: str, text: str) -> int:
    words, source = (re.findall(r"[\w.]+", one.lower()) for one in (question, text))
    runs = {tuple(source[at : at + size]) for size in range(1, 30) for at in range(len(source))}
    return max(
        (
            size
            for size in range(1, len(words) + 1)
            for at in range(len(words) - size + 1)
            if tuple(words[at : at + size]) in runs
        ),
        default=0,
    )


def test_a_corpus_gives_two_hundred_distinct_questions_of_fitting_length(
    corpus: LoadReport,
) -> None:
    questions = make_questions(corpus.documents)
    assert len({question.text.casefold() for question in questions}) == len(questions) == 200
    assert all(8 <= len(question.text.split()) <= 25 for question in questions)
    assert all(question.text.endswith("?") for question in questions)


def test_each_question_names_the_document_it_shares_words_with(corpus: LoadReport) -> None:
    by_id = {one.id: one.text.lower() for one in corpus.documents}
    for question in make_questions(corpus.documents):
        assert question.source_id is not None
        words = re.findall(r"[a-z]{5,}", question.text.lower())
        assert any(word in by_id[question.source_id] for word in words)


def test_questions_do_not_repeat_the_sentences_of_their_documents(corpus: LoadReport) -> None:
    by_id = {one.id: one.text for one in corpus.documents}
    questions = make_questions(corpus.documents, 60)
    # The corpus is what is installed: a long name of some package may bring a word more.
    runs = [_longest_shared_run(one.text, by_id[str(one.source_id)]) for one in questions]
    assert max(runs) <= 14
    assert sum(run > 11 for run in runs) <= 3


def test_questions_vary_and_come_from_all_over_the_corpus(corpus: LoadReport) -> None:
    questions = make_questions(corpus.documents)
    openings = Counter(" ".join(question.text.split()[:2]) for question in questions)
    assert len(openings) >= 15
    assert openings.most_common(1)[0][1] <= 50
    modules = {str(question.source_id).split(".")[0] for question in questions}
    assert len(modules) >= 60


def test_questions_are_the_same_every_time(corpus: LoadReport) -> None:
    documents = corpus.documents[:500]
    assert make_questions(documents, 50) == make_questions(tuple(documents), 50)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("m.f(a): Convert the given paths to absolute names.", "transform a particular paths"),
        ("m.f(a): Return True if the lock is held by a thread.", "whether the lock is held"),
        ("m.f(a): Runs. If the queue is already full, then it blocks.", "if the queue is already"),
        ("m.f(a): Runs. Raises ValueError if the size is negative.", "Which exception"),
        ("m.f(a): Runs.\n- size: The size that is wanted, in bytes.", "size"),
    ],
)
def test_a_statement_of_code_is_asked_for(text: str, asked: str) -> None:
    metadata = {"source": "python/m.py", "title": "m.f", "qualname": "m.f"}
    texts = [one.text for one in make_questions([Document("m.f", text, metadata)], 10)]
    assert any(asked in one for one in texts), texts


def _folder_documents(tmp_path: Path) -> Sequence[Document]:
    (tmp_path / "pump.md").write_text(
        "# Pump manual\n\nThe filter is a fine mesh of steel. If the pressure drops below two bar, "
        "close the valve. The tank is used to store rain water for the garden. The valve must be "
        "closed before the pump is opened. The pump is silent because it runs under water."
    )
    return load_folder(tmp_path).documents


def test_prose_of_a_user_is_asked_about(tmp_path: Path) -> None:
    texts = [one.text for one in make_questions(_folder_documents(tmp_path), 8)]
    assert any("if the pressure drops below two bar" in one for one in texts)
    assert any("the filter" in one for one in texts)
    assert len(texts) == len(set(texts)) == 8


def test_sentences_too_long_for_a_question_are_passed_over() -> None:
    text = f"If the tank is full, {'and ' * 400}close it. If the well is dry, wait for rain."
    texts = [one.text for one in make_questions([Document("a", text, {"title": "Pump"})], 3)]
    assert any("the well is dry" in one for one in texts)
    assert not any("the tank is full" in one for one in texts)


def test_a_long_name_is_shortened_in_questions() -> None:
    text = "If the well is dry, wait for rain."
    (question,) = make_questions([Document("a", text, {"title": "Pump" * 1000})], 1)
    assert len(question.text) < 300


def test_a_document_without_known_sentences_is_asked_about_by_its_words() -> None:
    text = "Kessel Ventile regeln den Dampfdruck zwischen Brenner und Turbine."
    questions = make_questions([Document("a", text, {"title": "Kessel"})], 3)
    assert questions
    assert all(question.source_id == "a" for question in questions)


def test_a_small_corpus_gives_what_it_has() -> None:
    assert make_questions([], 5) == ()
    assert make_questions([Document("a", "Yes.")], 5) == ()


def test_a_number_below_one_is_an_error() -> None:
    with pytest.raises(ConfigError, match="count"):
        make_questions([], 0)


def test_questions_are_loaded_one_a_line(tmp_path: Path) -> None:
    file = tmp_path / "questions.txt"
    file.write_bytes("\ufeffWhat is  this?\r\n\n  \nWo ist die Stra\xdfe?\n".encode())
    loaded = load_questions(file)
    assert [one.text for one in loaded.questions] == ["What is this?", "Wo ist die Stra\xdfe?"]
    assert loaded.duplicates == 0
    assert loaded.questions[0].source_id is None


def test_repeated_questions_are_dropped_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "questions.txt"
    file.write_text("Who?\nwhen?\nwho?\nWho? \nWhen?\n")
    loaded = load_questions(file)
    assert [one.text for one in loaded.questions] == ["Who?", "when?"]
    assert loaded.duplicates == 3


def test_questions_are_loaded_from_a_json_list(tmp_path: Path) -> None:
    file = tmp_path / "questions.json"
    file.write_text(json.dumps(["Who?", "", "When\nthen?"]))
    assert [one.text for one in load_questions(str(file)).questions] == ["Who?", "When then?"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"", "no questions"),
        ("a.txt", b"\n \n", "no questions"),
        ("a.json", b"[]", "no questions"),
        ("a.txt", b"Wer? \xff", "not UTF-8.*byte 5"),
        ("a.json", b"[1", "not JSON"),
        ("a.json", b'{"a": 1}', "no list.*dict"),
        ("a.json", b'["Who?", 5]', "item 1.*int"),
    ],
)
def test_a_bad_file_is_a_named_error(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DocumentError, match=message):
        load_questions(tmp_path / name)


def test_a_missing_file_and_a_folder_are_named_errors(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="No such file"):
        load_questions(tmp_path / "missing.txt")
    with pytest.raises(DocumentError, match="cannot read questions"):
        load_questions(tmp_path)

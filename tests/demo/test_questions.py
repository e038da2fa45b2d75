"""Questions ship with the package, or are loaded from a file."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from rag_accel.errors import DocumentError
from rag_accel.sample import LoadReport
from rag_accel_demo import corpus_questions, load_questions


def test_a_corpus_has_two_hundred_distinct_questions_of_fitting_length(corpus: LoadReport) -> None:
    questions = corpus_questions(corpus.documents)
    assert len({question.text.casefold() for question in questions}) == len(questions) == 200
    assert all(8 <= len(question.text.split()) <= 25 for question in questions)
    assert all(question.text.endswith("?") for question in questions)


def test_the_corpus_of_the_demo_has_a_question_for_every_user(corpus: LoadReport) -> None:
    assert len(corpus_questions(corpus.documents, 512)) == 512


def test_each_question_of_the_corpus_shares_words_with_its_document(corpus: LoadReport) -> None:
    by_id = {one.id: one.text.lower() for one in corpus.documents}
    questions = corpus_questions(corpus.documents, 512)
    # The documents are those of the running Python, the questions of an older one perhaps.
    shared = [
        any(
            word in by_id[str(one.source_id)] for word in re.findall(r"[a-z]{5,}", one.text.lower())
        )
        for one in questions
    ]
    assert sum(shared) >= 0.95 * len(questions)


def test_questions_vary_and_come_from_all_over_the_corpus(corpus: LoadReport) -> None:
    questions = corpus_questions(corpus.documents)
    openings = Counter(" ".join(question.text.split()[:2]) for question in questions)
    assert len(openings) >= 15
    assert openings.most_common(1)[0][1] <= 50
    assert len({question.source_id for question in questions}) == len(questions)
    assert len({str(question.source_id).split(".")[0] for question in questions}) >= 60


def test_only_documents_that_are_there_are_asked_about(corpus: LoadReport) -> None:
    few = corpus.documents[:30]
    questions = corpus_questions(few)
    assert questions
    assert {question.source_id for question in questions} <= {one.id for one in few}
    assert corpus_questions([]) == ()


def test_questions_are_loaded_one_a_line(tmp_path: Path) -> None:
    file = tmp_path / "questions.txt"
    file.write_bytes("\ufeffWhat is  this?\r\n\n  \nWo ist die Stra\xdfe?\n".encode())
    questions = load_questions(file)
    assert [one.text for one in questions] == ["What is this?", "Wo ist die Stra\xdfe?"]
    assert questions[0].source_id is None


def test_repeated_questions_are_dropped(tmp_path: Path) -> None:
    file = tmp_path / "questions.txt"
    file.write_text("Who?\nwhen?\nwho?\nWho? \nWhen?\n")
    assert [one.text for one in load_questions(file)] == ["Who?", "when?"]


def test_questions_are_loaded_from_a_json_list(tmp_path: Path) -> None:
    file = tmp_path / "questions.json"
    file.write_text(json.dumps(["Who?", "", "When\nthen?"]))
    assert [one.text for one in load_questions(str(file))] == ["Who?", "When then?"]


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

"""Questions for a corpus: from a user's file, shipped with the package, or derived of documents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import TypeVar

from rag_accel.engine_api import Document
from rag_accel.engines.sentences import split_sentences
from rag_accel.errors import ConfigError, DocumentError

ItemT = TypeVar("ItemT")

_MAX_FILE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and the id of the document it was made from, if it was made."""

    text: str
    source_id: str | None = None


@dataclass(frozen=True, slots=True)
class LoadedQuestions:
    """The distinct questions of a file in its order, and how many repeats were dropped."""

    questions: tuple[Question, ...]
    duplicates: int = 0


def load_questions(path: str | Path) -> LoadedQuestions:
    """Load questions from a UTF-8 file: one a line, or a JSON list of strings in a ``.json`` file.

    Blank lines are ignored; a question that differs from an earlier one only in case or white
    space is dropped and counted.

    Raises:
        DocumentError: if the file is missing, no text, no list of strings, too large or empty.
    """
    file = Path(path)
    texts = _json_texts(file) if file.suffix.lower() == ".json" else _text(file).splitlines()
    cleaned = [" ".join(text.split()) for text in texts]
    given = [text for text in cleaned if text]
    if not given:
        raise DocumentError("no questions", where=str(file), valid="one question a line")
    distinct = {text.casefold(): text for text in reversed(given)}
    questions = tuple(Question(text) for text in reversed(distinct.values()))
    return LoadedQuestions(questions, len(given) - len(questions))


def _json_texts(file: Path) -> list[str]:
    try:
        found = json.loads(_text(file))
    except (ValueError, RecursionError) as error:
        raise DocumentError("questions are not JSON", where=str(file), found=str(error)) from error
    if not isinstance(found, list):
        raise DocumentError(
            "questions are no list",
            where=str(file),
            found=type(found).__name__,
            valid="a JSON list of strings",
        )
    for index, item in enumerate(found):
        if not isinstance(item, str):
            raise DocumentError(
                "a question is no text",
                where=f"{file}, item {index}",
                found=type(item).__name__,
                valid="a JSON list of strings",
            )
    return found


def _text(file: Path) -> str:
    return bounded_text(file, "questions", "questions file", _MAX_FILE_BYTES)


def bounded_text(file: Path, content: str, file_name: str, most_bytes: int) -> str:
    """Return the text of a UTF-8 file; DocumentError names its ``content`` or the file."""
    try:
        if file.stat().st_size > most_bytes:
            valid = f"{most_bytes} bytes"
            raise DocumentError(f"{file_name} is too large", where=str(file), valid=valid)
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        what = f"cannot read {content}"
        raise DocumentError(what, where=str(file), found=error.strerror) from error
    except UnicodeDecodeError as error:
        where = f"{file}, byte {error.start}"
        raise DocumentError(f"{content} are not UTF-8", where=where) from error


DEFAULT_COUNT = 200
#: most words of a sentence that a question repeats, and most letters of a title
EXCERPT_WORDS = 12
_TITLE_LETTERS = 100
#: sentences of fewer words say too little to be asked about
_MIN_SENTENCE_WORDS = 4
_STRIDE = 0.6180339887498949
_SHIPPED = "questions.json"


def corpus_questions(
    documents: Sequence[Document], count: int = DEFAULT_COUNT
) -> tuple[Question, ...]:
    """Return up to ``count`` distinct questions about Python's own documentation.

    They come with the package: 4,000 questions about the chunks that ``read_corpus`` makes of the
    language reference and the standard library of Python 3.11. Only those whose chunk is among
    ``documents`` are returned, first one of each chunk, then a second, and so on.

    Raises:
        ConfigError: if ``count`` is below 1.
    """
    require_positive(count)
    file = resources.files("rag_accel.sample") / _SHIPPED
    shipped: dict[str, list[str]] = json.loads(file.read_text(encoding="utf-8"))
    present = {document.id for document in documents}
    of_each = [
        [Question(text, source) for text in texts]
        for source, texts in shipped.items()
        if source in present
    ]
    return tuple(islice(in_turn(of_each), count))


def make_questions(
    documents: Sequence[Document], count: int = DEFAULT_COUNT
) -> tuple[Question, ...]:
    """Make up to ``count`` distinct questions out of the titles and sentences of any documents.

    A question repeats the beginning of one sentence: ``What does Pump manual say about "The filter
    is a fine mesh of steel"?``. So it has an answer, but its words are those of the document: what
    users would ask differs, and a file of their questions is the better choice. The documents are
    visited in a fixed order that spreads over all of them: the first sentence of each, then the
    second, and so on.

    Raises:
        ConfigError: if ``count`` is below 1.
    """
    require_positive(count)
    order = sorted(range(len(documents)), key=lambda index: (index * _STRIDE) % 1.0)
    candidates = in_turn([_questions_of(documents[index]) for index in order])
    chosen: dict[str, Question] = {}
    for question in candidates:
        chosen.setdefault(question.text.casefold(), question)
        if len(chosen) == count:
            break
    return tuple(chosen.values())


def require_positive(count: int) -> None:
    """Raise ConfigError unless a number of questions is 1 or more."""
    if count < 1:
        raise ConfigError("bad number of questions", where="count", found=count, valid="1 or more")


def _questions_of(document: Document) -> list[Question]:
    title = str(document.metadata.get("title", document.id))
    spoken = title[:_TITLE_LETTERS].strip()
    questions: list[Question] = []
    for sentence in split_sentences(document.text.removeprefix(f"{title}: ")):
        words = sentence.split(maxsplit=EXCERPT_WORDS)[:EXCERPT_WORDS]
        if len(words) >= _MIN_SENTENCE_WORDS:
            excerpt = " ".join(words).rstrip(".,:;!?")
            questions.append(Question(f'What does {spoken} say about "{excerpt}"?', document.id))
    return questions


def in_turn(of_each: Sequence[Sequence[ItemT]]) -> Iterator[ItemT]:
    """Yield the first of each sequence, then the second of each that has one, and so on."""
    for turn in range(max(map(len, of_each), default=0)):
        yield from (items[turn] for items in of_each if turn < len(items))

"""Questions made of the sentences of documents, and the bounded text of a user's file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rag_accel.engine_api import Document
from rag_accel.errors import ConfigError, DocumentError
from rag_accel.sample.sentences import split_sentences

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and the id of the document it was made from, if it was made."""

    text: str
    source_id: str | None = None


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

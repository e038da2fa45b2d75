"""Load a user's own questions from a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rag_accel.errors import DocumentError

_MAX_FILE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Question:
    """Pair a question with the id of the document it was made from, if it was made."""

    text: str
    source_id: str | None = None


@dataclass(frozen=True, slots=True)
class LoadedQuestions:
    """Hold the distinct questions of a file in its order, and how many repeats were dropped."""

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
    asked = [text for text in cleaned if text]
    if not asked:
        raise DocumentError("no questions", where=str(file), valid="one question a line")
    distinct = {text.casefold(): text for text in reversed(asked)}
    questions = tuple(Question(text) for text in reversed(distinct.values()))
    return LoadedQuestions(questions, len(asked) - len(questions))


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
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise DocumentError(
                "questions file is too large", where=str(file), valid=f"{_MAX_FILE_BYTES} bytes"
            )
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DocumentError(
            "cannot read questions", where=str(file), found=error.strerror
        ) from error
    except UnicodeDecodeError as error:
        raise DocumentError(
            "questions are not UTF-8", where=f"{file}, byte {error.start}"
        ) from error

"""Questions for a corpus: from a user's file, or shipped with the package."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from itertools import islice
from pathlib import Path

from rag_accel.engine_api import Document
from rag_accel.errors import DocumentError
from rag_accel.sample.questions import (
    DEFAULT_COUNT,
    Question,
    bounded_text,
    in_turn,
    require_positive,
)

_MAX_FILE_BYTES = 16 * 1024 * 1024
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
    file = resources.files("rag_accel_demo") / _SHIPPED
    shipped: dict[str, list[str]] = json.loads(file.read_text(encoding="utf-8"))
    present = {document.id for document in documents}
    of_each = [
        [Question(text, source) for text in texts]
        for source, texts in shipped.items()
        if source in present
    ]
    return tuple(islice(in_turn(of_each), count))


def load_questions(path: str | Path) -> tuple[Question, ...]:
    """Load questions from a UTF-8 file: one a line, or a JSON list of strings in a ``.json`` file.

    They come in the order of the file. Blank lines are ignored; a question that differs from an
    earlier one only in case or white space is dropped.

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
    return tuple(Question(text) for text in reversed(distinct.values()))


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

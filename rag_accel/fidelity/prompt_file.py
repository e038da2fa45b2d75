"""A user's own prompts for a check: questions and the documents that were retrieved for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from rag_accel.errors import DocumentError
from rag_accel.fidelity.prompts import SYSTEM, TextPrompt
from rag_accel.sample.questions import bounded_text

_VALID = '{"question": "...", "documents": ["...", ...], "system": "..."}'
_MAX_BYTES = 1 << 26
Prompt = TypeVar("Prompt")


def load_prompts(path: str | Path) -> list[TextPrompt]:
    """Return the prompts of a UTF-8 file with one JSON object a line; blank lines are ignored.

    An object has ``question``, a list of texts as ``documents``, and may have ``system``, the
    system's turn; other members are ignored.

    Raises:
        DocumentError: the file is missing, too large or empty, or a line is no prompt; names it.
    """
    return load_lines(path, _prompt, _VALID)


def load_lines(
    path: str | Path, parse: Callable[[dict[str, Any]], Prompt], valid: str
) -> list[Prompt]:
    """Return what ``parse`` makes of the members of each object of such a file.

    Args:
        path: of the file.
        parse: raises a ValueError that says what is wrong with an object.
        valid: a valid line, for errors.

    Raises:
        DocumentError: as ``load_prompts`` does.
    """
    file = Path(path)
    found: list[Prompt] = []
    text = bounded_text(file, "prompts", "the file of prompts", _MAX_BYTES)
    for at, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{file}, line {at}"
        try:
            given: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DocumentError("a prompt is not JSON", where=where, found=str(error)) from error
        try:
            if not isinstance(given, dict):
                raise ValueError(f"a {type(given).__name__}")
            found.append(parse(given))
        except ValueError as error:
            what = "a line is no prompt"
            raise DocumentError(what, where=where, found=str(error), valid=valid) from error
    if not found:
        raise DocumentError("no prompts", where=str(file), valid=valid)
    return found


def _prompt(members: dict[str, Any]) -> TextPrompt:
    question, documents = members.get("question"), members.get("documents")
    system = members.get("system", SYSTEM)
    if not _is_text(question):
        raise ValueError("no question")
    if not isinstance(documents, list) or not documents or not all(map(_is_text, documents)):
        raise ValueError("no list of documents with text")
    if not isinstance(system, str):
        raise ValueError("a system's turn that is no text")
    return TextPrompt(tuple(documents), question, system)


def _is_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value.strip())

"""A user's own prompts for a check: questions and the documents that were retrieved for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeGuard

from rag_accel.errors import DocumentError
from rag_accel.fidelity.prompts import SYSTEM, TextPrompt
from rag_accel.sample.questions import bounded_text

_VALID = '{"question": "...", "documents": ["...", ...], "system": "..."}'
_MAX_BYTES = 1 << 26


def load_prompts(path: str | Path) -> list[TextPrompt]:
    """Return the prompts of a UTF-8 file with one JSON object a line; blank lines are ignored.

    An object has ``question``, a list of texts as ``documents``, and may have ``system``, the
    system's turn; other members are ignored.

    Raises:
        DocumentError: the file is missing, too large or empty, or a line is no prompt; names it.
    """
    file = Path(path)
    text = bounded_text(file, "prompts", "the file of prompts", _MAX_BYTES)
    lines = enumerate(text.split("\n"), 1)
    found = [_prompt(line, f"{file}, line {at}") for at, line in lines if line.strip()]
    if not found:
        raise DocumentError("no prompts", where=str(file), valid=_VALID)
    return found


def _prompt(line: str, where: str) -> TextPrompt:
    try:
        given: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DocumentError("a prompt is not JSON", where=where, found=str(error)) from error
    if not isinstance(given, dict):
        raise _no_prompt(where, f"a {type(given).__name__}")
    members: dict[str, Any] = given
    question, documents = members.get("question"), members.get("documents")
    system = members.get("system", SYSTEM)
    if not _is_text(question):
        raise _no_prompt(where, "no question")
    if not isinstance(documents, list) or not documents or not all(map(_is_text, documents)):
        raise _no_prompt(where, "no list of documents with text")
    if not isinstance(system, str):
        raise _no_prompt(where, "a system's turn that is no text")
    return TextPrompt(tuple(documents), question, system)


def _is_text(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value.strip())


def _no_prompt(where: str, found: str) -> DocumentError:
    return DocumentError("a line is no prompt", where=where, found=found, valid=_VALID)

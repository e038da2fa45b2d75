"""Texts, prompts and questions in the files that commands read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, get_args

from rag_accel.engine_api import Message
from rag_accel.engine_api.payloads import Role
from rag_accel.errors import ConfigError

_VALID = (
    "a folder with *.txt, a .txt file with a text a line, or a .jsonl file with an object a line "
    "whose text is a string"
)

VALID_QUESTIONS = "a question a line: plain text, or JSON (an object, a list or a string)"


def read_corpus(path: Path, *, metadata: bool = False, strip: bool = False) -> list[str]:
    """Return the texts of a file or folder in their order, as they will stand in prompts.

    Args:
        path: a folder, whose ``*.txt`` at any depth are taken by their paths; a ``.txt`` file with
            a text on each line that is not empty; or a ``.jsonl`` file of objects with ``text``
            and, it may be, ``metadata``.
        metadata: whether its lines, ``key: value``, stand before a text as LlamaIndex puts them.
        strip: whether the white space around a text is left out.

    Raises:
        ConfigError: it cannot be read, or holds no texts; names the file and line.
    """
    source = path.expanduser()
    entries = _of_folder(source) if source.is_dir() else _of_lines(source)
    found = [_form(text, values if metadata else {}, strip) for text, values in entries]
    if not found:
        _refuse("there are no texts", str(path), "nothing")
    return found


def read_text(path: Path) -> str:
    """Return the text of a file in UTF-8, unchanged.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return path.expanduser().read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "a file cannot be read", where=str(path), found=str(error), valid="a text in UTF-8"
        ) from error


def read_messages(path: Path) -> tuple[Message, ...]:
    """Return the messages of a ``.json`` file: a list of objects with ``role`` and ``content``.

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """
    try:
        value = json.loads(read_text(path))
        if not isinstance(value, list) or not value:
            raise ValueError("no list of messages")
        return tuple(map(_message, value))
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            "a prompt cannot be read",
            where=str(path),
            found=f"{type(error).__name__}: {error}",
            valid='[{"role": "system" | "user" | "assistant", "content": "..."}, ...]',
        ) from error


def read_questions(path: Path) -> list[Any]:
    """Return the questions of a file: a text of each plain line, a value of each line of JSON.

    Raises:
        ConfigError: it cannot be read, or holds no questions; names the file and line.
    """
    questions: list[Any] = []
    for number, line in enumerate(map(str.strip, read_text(path).splitlines()), 1):
        try:
            if line:
                questions.append(json.loads(line) if line[0] in '{["' else line)
        except (ValueError, RecursionError) as error:
            found, where = f"no JSON: {error}", f"{path}, line {number}"
            raise ConfigError(
                "a question cannot be read", where=where, found=found, valid=VALID_QUESTIONS
            ) from None
    if not questions:
        raise ConfigError("there are no questions", where=str(path), found=0, valid=VALID_QUESTIONS)
    return questions


def _message(value: Mapping[str, Any]) -> Message:
    role, content = value["role"], value["content"]
    if role not in get_args(Role) or not isinstance(content, str):
        raise ValueError(f"{role!r}, {type(content).__name__}")
    return Message(role, content)


def _of_folder(folder: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path in sorted(folder.rglob("*.txt")):
        yield read_text(path), {}


def _of_lines(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if path.suffix == ".txt":
        yield from ((line, {}) for line in read_text(path).splitlines() if line.strip())
        return
    if path.suffix != ".jsonl":
        _refuse("texts cannot be read", str(path), path.suffix or "no suffix")
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if line.strip():
            yield _entry(line, f"{path}, line {number}")


def _entry(line: str, where: str) -> tuple[str, Mapping[str, Any]]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        _refuse("texts cannot be read", where, f"no JSON: {error}")
    text = value.get("text") if isinstance(value, dict) else None
    values = value.get("metadata") or {} if isinstance(value, dict) else {}
    if not isinstance(text, str) or not isinstance(values, dict):
        _refuse("texts cannot be read", where, "no text, or metadata that is no object")
    return text, values


def _form(text: str, metadata: Mapping[str, Any], strip: bool) -> str:
    lines = "\n".join(f"{name}: {value}" for name, value in metadata.items()).strip()
    if lines:
        return f"{lines}\n\n{text}".strip()
    return text.strip() if strip else text


def _refuse(what: str, where: str, found: str) -> NoReturn:
    raise ConfigError(what, where=where, found=found, valid=_VALID)

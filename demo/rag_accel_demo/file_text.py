"""The text of one file in reading order."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from rag_accel.sample.markup import paragraphs

#: a longer heading is text; each chunk of a part repeats the part's heading
MAX_HEADING_LETTERS = 200


class UnreadableFileError(Exception):
    """The text of one file cannot be had; the loader reports why and goes on."""


@dataclass(frozen=True, slots=True)
class FileText:
    """The text of a file: its title, if it names one, and ``(heading, paragraphs)`` parts."""

    title: str | None
    parts: tuple[tuple[str, tuple[str, ...]], ...]


class TextBuilder:
    """A builder of a ``FileText`` from the headings and texts of a file in reading order.

    The first heading of the top level becomes the title, every other one opens a part.
    """

    def __init__(self) -> None:
        self._title: str | None = None
        self._heading = ""
        self._paragraphs: list[str] = []
        self._parts: list[tuple[str, tuple[str, ...]]] = []

    def add_heading(self, level: int, text: str) -> None:
        """Open a part under a heading of ``level`` 1 to 6."""
        heading = " ".join(text.split())
        if len(heading) > MAX_HEADING_LETTERS:
            self.add_text(heading)
        elif heading:
            self._close()
            self._heading = heading
            if level == 1 and self._title is None:
                self._title, self._heading = heading, ""

    def add_text(self, text: str, *, is_item: bool = False) -> None:
        """Add the paragraphs of a text; ``is_item`` makes the first one an item of a list."""
        found = paragraphs(text)
        if is_item and found and not found[0].startswith("- "):
            found[0] = f"- {found[0]}"
        self._paragraphs.extend(found)

    def file_text(self, title: str | None = None) -> FileText:
        """Return what was added; ``title`` comes before a title from a heading."""
        self._close()
        return FileText(title or self._title, tuple(self._parts))

    def _close(self) -> None:
        self._parts.append((self._heading, tuple(self._paragraphs)))
        self._paragraphs = []


def decoded(data: bytes) -> str:
    """Decode UTF-8, or UTF-16 that says so.

    Raises:
        UnreadableFileError: if it is neither.
    """
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    if encoding != "utf-16":
        reject_binary(data)
    try:
        return data.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise UnreadableFileError(f"not {encoding} text at byte {error.start}") from None


def reject_binary(data: bytes) -> None:
    """Raise ``UnreadableFileError`` for data with zero bytes."""
    if b"\0" in data:
        raise UnreadableFileError(f"binary data at byte {data.index(0)}")


def parser_module(name: str, what: str) -> Any:
    """Import the parser of a format.

    Raises:
        ImportError: if it is not installed; names the extra that brings it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f"reading {what} files needs {name}: pip install 'rag-accel[documents]'"
        ) from error

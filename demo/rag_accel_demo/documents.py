"""A folder of the user's own documents: text and Markdown.

A file that cannot be read is named with its reason and the others are read. Hidden files and
folders, and files of other formats, are passed over in silence. Symbolic links are followed; a
folder or file met twice is read once.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from rag_accel.engine_api import Document
from rag_accel.errors import DocumentError
from rag_accel.sample import LoadReport, SkippedDocument, markup
from rag_accel.sample.chunking import MIN_WORDS, Section, chunk_section, count_words

DEFAULT_MAX_BYTES = 32 * 1024 * 1024
#: a longer heading is text; each chunk of a part repeats the part's heading
_MAX_HEADING_LETTERS = 200
_REASONS_SHOWN = 5

Part = tuple[str, tuple[str, ...]]
"""A heading, empty where there is none, and the paragraphs under it."""


class _UnreadableFileError(Exception):
    """The reason, as a user understands it, why the text of one file cannot be had."""


@dataclass(frozen=True, slots=True)
class _FileText:
    """The text of a file in reading order: its title, if it names one, and its parts."""

    title: str | None
    parts: tuple[Part, ...]


def load_folder(folder: str | Path, *, max_bytes: int = DEFAULT_MAX_BYTES) -> LoadReport:
    """Read every readable document below ``folder``, in the order of their paths.

    Ids are paths relative to the folder, ``guide/setup.md`` and then ``guide/setup.md#2``.

    Args:
        folder: where the documents are.
        max_bytes: larger files are skipped.

    Raises:
        DocumentError: if the folder is missing, or no document in it can be read.
        ImportError: if a file that is no plain text is met without ``rag-accel[documents]``.
    """
    root = Path(folder)
    if not root.is_dir():
        found = "a file" if root.exists() else "nothing"
        raise DocumentError("cannot read documents", where=str(root), found=found, valid="a folder")
    documents: list[Document] = []
    skipped: list[SkippedDocument] = []
    for path in _files(root, skipped):
        name = path.relative_to(root).as_posix()
        try:
            documents.extend(_chunks(name, _read(path, max_bytes)))
        except ImportError:
            raise
        except _UnreadableFileError as error:
            skipped.append(SkippedDocument(name, str(error)))
        except Exception as error:  # parsers of damaged files raise anything at all
            skipped.append(SkippedDocument(name, f"{type(error).__name__}: {error}"))
    if not documents:
        raise _nothing_read(root, skipped)
    return LoadReport(tuple(documents), tuple(skipped))


def _nothing_read(root: Path, skipped: list[SkippedDocument]) -> DocumentError:
    reasons = "; ".join(map(str, skipped[:_REASONS_SHOWN]))
    return DocumentError(
        "no document could be read",
        where=str(root),
        found=reasons or "no document of a known format",
        valid=", ".join(_READERS),
        hint="put at least one readable document there",
    )


def _files(root: Path, skipped: list[SkippedDocument]) -> Iterator[Path]:
    """Yield visible files of a known format below ``root``, sorted, each inode once."""
    seen = {_identity(root.stat())}
    folders = [root]
    found: list[Path] = []
    while folders:
        for path in _listed(folders.pop(), root, skipped):
            try:
                status = path.stat()
            except OSError as error:  # a dangling link, or a chain of links without end
                if path.suffix.lower() in _READERS:
                    skipped.append(_skip(path, root, f"broken link: {error.strerror}"))
                continue
            is_folder = stat.S_ISDIR(status.st_mode)
            if not is_folder and path.suffix.lower() not in _READERS:
                continue
            if _identity(status) in seen:
                skipped.append(_skip(path, root, "a link to something already read"))
                continue
            seen.add(_identity(status))
            (folders if is_folder else found).append(path)
    return iter(sorted(found, key=lambda path: path.relative_to(root).parts))


def _listed(folder: Path, root: Path, skipped: list[SkippedDocument]) -> list[Path]:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        skipped.append(_skip(folder, root, f"cannot be listed: {error.strerror}"))
        return []
    return [folder / name for name in names if not name.startswith(".")]


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _skip(path: Path, root: Path, reason: str) -> SkippedDocument:
    return SkippedDocument(path.relative_to(root).as_posix(), reason)


def _read(path: Path, max_bytes: int) -> _FileText:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for ever
        raise _UnreadableFileError("not a regular file")
    if status.st_size > max_bytes:
        raise _UnreadableFileError(f"{status.st_size} bytes, more than the {max_bytes} allowed")
    text = _READERS[path.suffix.lower()](path.read_bytes())
    if not any(paragraphs for _, paragraphs in text.parts):
        raise _UnreadableFileError("no text in it")
    return text


def _chunks(name: str, text: _FileText) -> Iterator[Document]:
    """Cut a file's parts into chunks that are numbered through."""
    title = text.title or PurePosixPath(name).stem.replace("_", " ").replace("-", " ").strip()
    title = title[:_MAX_HEADING_LETTERS].rstrip()
    number = 0
    for heading, paragraphs in _grouped(text.parts):
        full = f"{title}, {heading}" if heading else title
        section = Section(name, full, full, name, name, paragraphs)
        for chunk in chunk_section(section):
            number += 1
            yield chunk if number == 1 else replace(chunk, id=f"{name}#{number}")


def _grouped(
    parts: Iterable[Part],
) -> Iterator[Part]:
    """Join short parts with the ones after them; a joined part's heading opens its paragraph."""
    heading, group = "", list[str]()
    for name, paragraphs in parts:
        if not paragraphs:
            continue
        if sum(map(count_words, group)) >= MIN_WORDS:
            yield heading, tuple(group)
            group = []
        if not group:
            heading = name
            group.extend(paragraphs)
        else:
            first = paragraphs[0].removeprefix("- ")
            group.extend((f"{name}: {first}" if name else first, *paragraphs[1:]))
    if group:
        yield heading, tuple(group)


def _read_text(data: bytes) -> _FileText:
    """Read plain text; its first line is no title."""
    return _FileText(None, (("", tuple(markup.paragraphs(_decoded(data)))),))


def _read_markdown(data: bytes) -> _FileText:
    """Read CommonMark with tables: one part for each heading; the first top heading is the title.

    Front matter, images, tags and blocks of HTML are left out, as is what nests more than 20
    levels deep.

    Raises:
        ImportError: if the extra ``rag-accel[documents]`` is missing.
    """
    try:
        from markdown_it import MarkdownIt
        from mdit_py_plugins.front_matter import front_matter_plugin
    except ImportError as error:
        raise ImportError(
            f"reading Markdown files needs {error.name}: pip install 'rag-accel[documents]'"
        ) from error
    parser = MarkdownIt("commonmark").enable("table").use(front_matter_plugin)
    text = _MarkdownText()
    for token in parser.parse(_decoded(data)):
        text.take(token)
    return text.file_text()


_READERS: Mapping[str, Callable[[bytes], _FileText]] = {
    ".txt": _read_text,
    ".md": _read_markdown,
    ".markdown": _read_markdown,
}


def _decoded(data: bytes) -> str:
    """Decode UTF-8, or UTF-16 that says so."""
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    if encoding != "utf-16" and b"\0" in data:
        raise _UnreadableFileError(f"binary data at byte {data.index(0)}")
    try:
        return data.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise _UnreadableFileError(f"not {encoding} text at byte {error.start}") from None


class _MarkdownText:
    """The text that a Markdown parser's tokens give, part by part.

    The first heading of the top level becomes the title, every other one opens a part.
    """

    def __init__(self) -> None:
        self._title: str | None = None
        self._parts: list[Part] = []
        self._heading = ""
        self._paragraphs: list[str] = []
        #: the level of the heading under way, else 0
        self._level = 0
        self._is_item = False
        #: the cells of the row under way
        self._row: list[str] | None = None

    def take(self, token: Any) -> None:
        """Take the next token of the text's blocks."""
        match token.type:
            case "heading_open":
                self._level = int(token.tag[1:])
            case "list_item_open":
                self._is_item = True
            case "list_item_close":
                self._is_item = False
            case "tr_open":
                self._row = []
            case "tr_close":
                row, self._row = self._row or [], None
                self._add(" | ".join(filter(None, row)))
            case "inline":
                self._take_inline(_inline_text(token.children))
            case "fence" | "code_block":
                self._add(token.content)
            case _:
                pass

    def file_text(self) -> _FileText:
        """Return what was taken."""
        self._close()
        return _FileText(self._title, tuple(self._parts))

    def _take_inline(self, text: str) -> None:
        if self._level:
            level, self._level = self._level, 0
            self._open(level, " ".join(text.split()))
        elif self._row is not None:
            self._row.append(" ".join(text.split()))
        else:
            self._add(text)

    def _open(self, level: int, heading: str) -> None:
        if len(heading) > _MAX_HEADING_LETTERS:
            self._paragraphs.extend(markup.paragraphs(heading))
        elif heading:
            self._close()
            self._heading = heading
            if level == 1 and self._title is None:
                self._title, self._heading = heading, ""

    def _add(self, text: str) -> None:
        added = markup.paragraphs(text)
        if self._is_item and added and not added[0].startswith("- "):
            added[0] = f"- {added[0]}"
        self._is_item = False
        self._paragraphs.extend(added)

    def _close(self) -> None:
        self._parts.append((self._heading, tuple(self._paragraphs)))
        self._paragraphs = []


def _inline_text(tokens: Iterable[Any]) -> str:
    texts: list[str] = []
    for token in tokens:
        is_tag = token.type == "html_inline"
        if token.type in ("text", "code_inline"):
            texts.append(token.content)
        elif token.type in ("softbreak", "hardbreak") or (is_tag and token.content[:3] == "<br"):
            texts.append("\n")
    return "".join(texts)

"""A folder of the user's own documents: text and Markdown.

A reader gets the bytes of a file and returns ``FileText``; it raises ``UnreadableFileError`` with a
reason a user understands. Parsers of the extra ``documents`` are imported when such a file is met.

A file that cannot be read is named with its reason and the others are read. Hidden files and
folders, and files of other formats, are passed over in silence. Symbolic links are followed; a
folder or file met twice is read once.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath

from rag_accel.engine_api import Document
from rag_accel.errors import DocumentError
from rag_accel.sample import LoadReport, SkippedDocument, markup
from rag_accel.sample.chunking import MIN_WORDS, Section, chunk_section, count_words
from rag_accel_demo.file_text import (
    MAX_HEADING_LETTERS,
    FileText,
    UnreadableFileError,
    decoded,
)
from rag_accel_demo.markdown_files import read_markdown


def read_text(data: bytes) -> FileText:
    """Read plain text; its first line is no title."""
    return FileText(None, (("", tuple(markup.paragraphs(decoded(data)))),))


READERS: Mapping[str, Callable[[bytes], FileText]] = {
    ".txt": read_text,
    ".md": read_markdown,
    ".markdown": read_markdown,
}


DEFAULT_MAX_BYTES = 32 * 1024 * 1024
_REASONS_SHOWN = 5


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
        except UnreadableFileError as error:
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
        valid=", ".join(READERS),
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
                if path.suffix.lower() in READERS:
                    skipped.append(_skip(path, root, f"broken link: {error.strerror}"))
                continue
            is_folder = stat.S_ISDIR(status.st_mode)
            if not is_folder and path.suffix.lower() not in READERS:
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


def _read(path: Path, max_bytes: int) -> FileText:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for ever
        raise UnreadableFileError("not a regular file")
    if status.st_size > max_bytes:
        raise UnreadableFileError(f"{status.st_size} bytes, more than the {max_bytes} allowed")
    text = READERS[path.suffix.lower()](path.read_bytes())
    if not any(paragraphs for _, paragraphs in text.parts):
        raise UnreadableFileError("no text in it")
    return text


def _chunks(name: str, text: FileText) -> Iterator[Document]:
    """Cut a file's parts into chunks that are numbered through."""
    title = text.title or PurePosixPath(name).stem.replace("_", " ").replace("-", " ").strip()
    title = title[:MAX_HEADING_LETTERS].rstrip()
    number = 0
    for heading, paragraphs in _grouped(text.parts):
        full = f"{title}, {heading}" if heading else title
        section = Section(name, full, full, name, name, paragraphs)
        for chunk in chunk_section(section):
            number += 1
            yield chunk if number == 1 else replace(chunk, id=f"{name}#{number}")


def _grouped(
    parts: Iterable[tuple[str, tuple[str, ...]]],
) -> Iterator[tuple[str, tuple[str, ...]]]:
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

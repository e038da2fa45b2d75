"""Turn the bytes of one file into its title and its sections, for each format that can be read.

A reader gets the bytes and returns ``FileText``; it raises ``UnreadableFileError`` with a reason
a user understands. The parsers of HTML and PDF are imported only when such a file is met.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from rag_accel.sample.markup import paragraphs, plain_text

_MARKDOWN_HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.+?)\s*#*\s*$")
_FENCE = re.compile(r"^\s*(?:```|~~~)")
_FRONT_MATTER = re.compile(r"\A---\s*\n.*?\n---\s*(?:\n|\Z)", re.DOTALL)
_HYPHENATED = re.compile(r"(\w)-\n(?=[a-z])")
_HTML_HIDDEN = ("script", "style", "nav", "noscript", "template", "svg")
_HTML_BLOCKS = (
    *("p", "div", "section", "article", "table", "tr", "ul", "ol", "pre", "blockquote"),
    *("dl", "dt", "dd", "header", "footer", "main", "br"),
)
_HTML_HEADINGS = {f"h{level}": "#" * level for level in range(1, 7)}


class UnreadableFileError(Exception):
    """Say why the text of one file cannot be had; the loader reports it and goes on."""


@dataclass(frozen=True, slots=True)
class FileText:
    """Hold what a file says: its title, if it names one, and ``(heading, paragraphs)`` parts."""

    title: str | None
    parts: tuple[tuple[str, tuple[str, ...]], ...]


def read_text(data: bytes) -> FileText:
    """Read plain text; its first line is no title."""
    return FileText(None, (("", tuple(paragraphs(_decoded(data)))),))


def read_markdown(data: bytes) -> FileText:
    """Read Markdown: one part for each heading; the first top heading is the title."""
    return _parsed_markdown(_FRONT_MATTER.sub("", _decoded(data)), plain_text)


def read_html(data: bytes) -> FileText:
    """Read the visible text of an HTML page, cut at its headings."""
    _reject_binary(data)
    soup = _parser("bs4", "HTML").BeautifulSoup
    with warnings.catch_warnings():  # the parser has opinions on what is XML or a file name
        warnings.simplefilter("ignore")
        page = soup(data, "html.parser")
    title = page.title.get_text(" ", strip=True) if page.title else None
    body = page.body or page
    _mark_blocks(body)
    text = _parsed_markdown(body.get_text(), str)
    return FileText(title or text.title, text.parts)


def read_pdf(data: bytes) -> FileText:
    """Read the text layer of a PDF; raises for one that is encrypted or holds only images."""
    pypdf = _parser("pypdf", "PDF")
    reader = pypdf.PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise UnreadableFileError("encrypted with a password")
    pages = [page.extract_text() for page in reader.pages]
    text = _HYPHENATED.sub(r"\1", "\n\n".join(pages))
    if not text.strip():
        raise UnreadableFileError("no text layer (scanned pages?)")
    title = (reader.metadata.title if reader.metadata else None) or ""
    return FileText(title.strip() or None, (("", tuple(paragraphs(text))),))


READERS: Mapping[str, Callable[[bytes], FileText]] = {
    ".txt": read_text,
    ".md": read_markdown,
    ".markdown": read_markdown,
    ".html": read_html,
    ".htm": read_html,
    ".pdf": read_pdf,
}


def _parser(module: str, what: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            f"reading {what} files needs {module}: pip install 'rag-accel[documents]'"
        ) from error


def _decoded(data: bytes) -> str:
    """Decode UTF-8, or UTF-16 that says so."""
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    if encoding != "utf-16":
        _reject_binary(data)
    try:
        return data.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise UnreadableFileError(f"not {encoding} text at byte {error.start}") from None


def _reject_binary(data: bytes) -> None:
    if b"\0" in data:
        raise UnreadableFileError(f"binary data at byte {data.index(0)}")


def _parsed_markdown(text: str, clean: Callable[[str], str]) -> FileText:
    title: str | None = None
    parts: list[tuple[str, tuple[str, ...]]] = []
    for level, heading, body in _markdown_parts(text):
        heading = clean(heading)
        if level == 1 and title is None:
            title, heading = heading, ""
        cleaned = (clean(paragraph) for paragraph in paragraphs(body))
        parts.append((heading, tuple(paragraph for paragraph in cleaned if paragraph)))
    return FileText(title, tuple(parts))


def _markdown_parts(text: str) -> Iterator[tuple[int, str, str]]:
    level, heading = 0, ""
    lines: list[str] = []
    is_code = False
    for line in text.splitlines():
        if _FENCE.match(line):
            is_code = not is_code
            lines.append("")
        elif not is_code and (match := _MARKDOWN_HEADING.match(line)):
            yield level, heading, "\n".join(lines)
            level, heading, lines = len(match[1]), match[2], []
        else:
            lines.append(line)
    yield level, heading, "\n".join(lines)


def _mark_blocks(body: Any) -> None:
    """Rewrite a page's blocks as Markdown would: blank lines, bullets and headings."""
    for tag in body.find_all(_HTML_HIDDEN):
        tag.decompose()
    for tag in body.find_all(list(_HTML_HEADINGS)):
        heading = " ".join(tag.get_text(" ").split()).rstrip(" \u00b6#")
        tag.replace_with(f"\n\n{_HTML_HEADINGS[tag.name]} {heading}\n\n")
    for tag in body.find_all("li"):
        tag.insert(0, "\n- ")
    for tag in body.find_all(_HTML_BLOCKS):
        tag.insert_before("\n\n")
        tag.insert_after("\n\n")

"""The text layer of PDF."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from rag_accel.sample.file_text import FileText, UnreadableFileError, parser_module
from rag_accel.sample.markup import paragraphs

_HYPHENATED = re.compile(r"(\w)-\n(?=[a-z])")
_SHOWS_TEXT = re.compile(rb"T[jJ]\b|Do\b|['\"]")
_SHOWN_FORM = re.compile(rb"(/[^\s/<>\[\](){}%]+)\s+Do\b")

# Pages share fonts, contents and forms, and a form may show others many times: a file can make its
# reader do work that grows with a power of its size, or exponentially. Ordinary contents take up to
# ten times the bytes of their file, because they are compressed there.
_WORK_PER_BYTE = 16
_FREE_WORK = 2_000_000
_FONT_WORK = 50
_FONT_BYTES_PER_WORK = 5
_DRAWN_BYTES_PER_WORK = 100  # contents without text are not parsed
_MAX_FORM_LEVELS = 32


def read_pdf(data: bytes) -> FileText:
    """Read the text layer of a PDF; raises for one that is encrypted or holds only images."""
    pypdf = parser_module("pypdf", "PDF")
    try:
        return _read(pypdf, data)
    except RecursionError:
        raise UnreadableFileError("its objects nest too deep") from None


def _read(pypdf: Any, data: bytes) -> FileText:
    reader = pypdf.PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise UnreadableFileError("encrypted with a password")
    _check_work(reader, len(data))
    pages = [page.extract_text() for page in reader.pages]
    text = _HYPHENATED.sub(r"\1", "\n\n".join(pages))
    if not text.strip():
        raise UnreadableFileError("no text layer (scanned pages?)")
    title = (reader.metadata.title if reader.metadata else None) or ""
    return FileText(title.strip() or None, (("", tuple(paragraphs(text))),))


def _check_work(reader: Any, num_bytes: int) -> None:
    left = _FREE_WORK + _WORK_PER_BYTE * num_bytes
    work = _PageWork()
    for page in reader.pages:
        left -= work.of_page(page)
        if left < 0:
            raise UnreadableFileError("its pages repeat far more than the file holds")


class _PageWork:
    """An estimate of what reading a page takes, in bytes of contents that are gone through."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def of_page(self, page: Any) -> int:
        """Return the work of a page with all that it shows."""
        contents = page.get_contents()
        return self._of(page, b"" if contents is None else contents.get_data(), 0)

    def _of_form(self, form: Any, level: int) -> int:
        if level > _MAX_FORM_LEVELS:
            raise UnreadableFileError(f"forms nest more than {_MAX_FORM_LEVELS} deep")
        if id(form) not in self._known:
            self._known[id(form)] = 0  # a form that shows itself is read once
            self._known[id(form)] = self._of(form, _data(form), level)
        return self._known[id(form)]

    def _of(self, holder: Any, contents: bytes, level: int) -> int:
        resources = _dictionary(holder, "/Resources")
        drawn = 1 if _SHOWS_TEXT.search(contents) else _DRAWN_BYTES_PER_WORK
        work = len(contents) // drawn + sum(map(_font_work, _values(resources, "/Font")))
        forms = _dictionary(resources, "/XObject")
        for name, count in Counter(_SHOWN_FORM.findall(contents)).items():
            form = _dictionary(forms, name.decode("latin-1"))
            if form.get("/Subtype") == "/Form":
                work += count * self._of_form(form, level + 1)
        return work


def _font_work(font: Any) -> int:
    encoding = _dictionary(font, "/Encoding")
    streams = (_dictionary(font, "/ToUnicode"), encoding)
    lists = (_resolved(font, "/Widths"), _resolved(encoding, "/Differences"))
    num_bytes = sum(len(_data(stream)) for stream in streams if hasattr(stream, "get_data"))
    num_bytes += sum(len(list_) for list_ in lists if isinstance(list_, list))
    return _FONT_WORK + num_bytes // _FONT_BYTES_PER_WORK


def _values(holder: Any, key: str) -> Iterator[Any]:
    values = _dictionary(holder, key)
    for name in values:
        yield _dictionary(values, name)


def _dictionary(holder: Any, key: str) -> Any:
    found = _resolved(holder, key)
    return found if isinstance(found, dict) else {}


# What is damaged counts for nothing here: pypdf passes over some of it, and tells the rest when it
# reads the page.


def _resolved(holder: Any, key: str) -> Any:
    try:
        return holder[key]
    except Exception:
        return None


def _data(stream: Any) -> bytes:
    try:
        return stream.get_data()
    except Exception:
        return b""

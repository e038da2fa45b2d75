"""Say which reader turns the bytes of a file into its title and parts, by the file's suffix.

A reader gets the bytes and returns ``FileText``; it raises ``UnreadableFileError`` with a reason
a user understands. Parsers of the extra ``documents`` are imported only when such a file is met.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rag_accel.sample.file_text import FileText, decoded
from rag_accel.sample.html_files import read_html
from rag_accel.sample.markdown_files import read_markdown
from rag_accel.sample.markup import paragraphs
from rag_accel.sample.pdf_files import read_pdf


def read_text(data: bytes) -> FileText:
    """Read plain text; its first line is no title."""
    return FileText(None, (("", tuple(paragraphs(decoded(data)))),))


READERS: Mapping[str, Callable[[bytes], FileText]] = {
    ".txt": read_text,
    ".md": read_markdown,
    ".markdown": read_markdown,
    ".html": read_html,
    ".htm": read_html,
    ".pdf": read_pdf,
}

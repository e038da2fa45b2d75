"""The text of an explanation, which a notebook shows as a table."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Protocol

#: Notebooks align the cells of a table to the right. No colour is set, so that it can be read in
#: dark pages too; the attribute is for pages that remove styles.
_CELL = '<td align="left" style="text-align: left; vertical-align: top"'
_INDENT = "&emsp;"


class _Printer(Protocol):
    def text(self, obj: str) -> object: ...


class ExplainedText(str):
    """A text that says how each part of a program runs, one part a line.

    As the last expression of a notebook's cell it is shown as a table of parts. In IPython without
    HTML it is shown as ``print`` would show it.
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        return "\n".join(_html(self))

    def _repr_pretty_(self, printer: _Printer, cycle: bool) -> None:
        printer.text(str(self))


def _html(text: str) -> Iterator[str]:
    """Yield a title for each line that is not indented, a table of those that are."""
    is_open = False
    for line in text.splitlines():
        shown = line.lstrip(" ")
        depth = (len(line) - len(shown)) // 2
        if is_open != bool(depth):
            is_open = bool(depth)
            yield "<table>" if is_open else "</table>"
        yield _row(shown, depth - 1) if is_open else f"<div>{escape(shown)}</div>"
    if is_open:
        yield "</table>"


def _row(line: str, depth: int) -> str:
    part, colon, how = line.partition(": ")
    if not colon:
        return f'<tr>{_CELL} colspan="2">{_INDENT * depth}{escape(line)}</td></tr>'
    name = f"{_CELL}>{_INDENT * depth}<code>{escape(part)}</code></td>"
    return f"<tr>{name}{_CELL}>{escape(how)}</td></tr>"

"""The items of a list, read while the completion is still being written (Teola 4.2, Pass 4).

Understood are JSON (an array of texts; an object with such an array; objects with one text each, in
an array or one a line; texts one a line) and lines, whose bullets and numbers are dropped. What
models put around a list is skipped: an introduction, the fences of a code block, what follows.

An item is given out as soon as no later text could change it, and however a text is cut into
pieces, its items are those of the whole. Reading takes time in proportion to the text, however it
is cut: a model in a loop writes the worst of texts, token by token, while requests are served.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, Literal, Protocol, TypeAlias

from rag_accel.errors import EngineOutputError
from rag_accel.graph.item_json import JsonScanner, may_follow

ListForm: TypeAlias = Literal["auto", "lines", "json"]

_ITEM_MARK: Final = re.compile(r"^\s*(?:[-*•]|\(?\d{1,3}[.):])\s+")
_FENCE: Final = "```"

_SHOWN = 60


class ItemReader:
    """A reader of a completion, piece by piece, that gives each item once, up to ``limit`` of them.

    Items are stripped; empty ones and repeats are left out. A text that ends inside an item of
    JSON loses that item; the last line needs no end.

    Args:
        form: ``lines``, ``json``, or ``auto`` for whichever the text begins with.
        limit: items after which nothing more is read.
    """

    def __init__(self, form: ListForm = "auto", limit: int | None = None) -> None:
        self._form: ListForm = form
        self._limit = limit
        self._scanner: _Scanner = _SCANNERS[form]()
        self._items: dict[str, None] = {}
        self._head = ""

    @property
    def items(self) -> tuple[str, ...]:
        return tuple(self._items)

    def feed(self, text: str) -> tuple[str, ...]:
        """Take the next piece and return the items that it has finished."""
        if len(self._head) < _SHOWN:
            self._head += text[:_SHOWN]
        return self._new(self._scanner.feed(text))

    def finish(self) -> tuple[str, ...]:
        """Take the end of the text and return the items that only it has finished.

        Raises:
            EngineOutputError: if it had to be JSON and holds no list.
        """
        new = self._new(self._scanner.finish())
        if not self._scanner.is_list:
            raise EngineOutputError(
                "a completion holds no list",
                where=f"list of the form {self._form!r}",
                found=repr(self._head[:_SHOWN]),
                valid='a JSON array of texts, such as ["one", "two"]',
                hint="ask for that in the prompt, raise max_tokens, or read the form 'auto'",
            )
        return new

    def _new(self, found: Iterable[str]) -> tuple[str, ...]:
        new: list[str] = []
        for text in found:
            item = text.strip()
            is_full = self._limit is not None and len(self._items) >= self._limit
            if item and item not in self._items and not is_full:
                self._items[item] = None
                new.append(item)
        return tuple(new)


def read_items(text: str, form: ListForm = "auto", limit: int | None = None) -> tuple[str, ...]:
    """Return the items of a whole text.

    Raises:
        EngineOutputError: if it had to be JSON and holds no list.
    """
    reader = ItemReader(form, limit)
    reader.feed(text)
    reader.finish()
    return reader.items


class _Scanner(Protocol):
    @property
    def is_list(self) -> bool: ...

    def feed(self, text: str) -> Iterable[str]: ...

    def finish(self) -> Iterable[str]: ...


class _LineScanner:
    """A reader of one item a line; before the first, a line that ends in a colon is none.

    Any text is a list of lines.
    """

    is_list = True

    def __init__(self) -> None:
        #: what there is of the line that has not ended
        self._pieces: list[str] = []
        self._has_begun = False

    def feed(self, text: str) -> Iterator[str]:
        for piece in text.splitlines(keepends=True):
            self._pieces.append(piece)
            if _has_ended(piece):
                yield from self.finish()

    def finish(self) -> Iterator[str]:
        line = "".join(self._pieces).splitlines() or [""]
        self._pieces.clear()
        yield self._item(line[0])

    def _item(self, line: str) -> str:
        if _is_around(line, self._has_begun):
            return ""
        self._has_begun = True
        return _ITEM_MARK.sub("", line)


class _AutoScanner:
    """A reader that takes the form of a text from the first line that is not empty.

    No text is refused: one that begins like JSON and holds no list has no items.
    """

    is_list = True

    def __init__(self) -> None:
        self._chosen: _LineScanner | JsonScanner | None = None
        #: the text that nothing is decided on, from its first letter that is no white space
        self._pieces: list[str] = []
        #: its first two letters that are no white space
        self._opening = ""
        self._has_line = False

    def feed(self, text: str) -> Iterable[str]:
        if self._chosen is not None:
            return self._chosen.feed(text)
        pieces = iter(text.splitlines(keepends=True))
        for piece in pieces:
            self._chosen = self._choice(piece)
            if self._chosen is not None:
                return self._chosen.feed("".join((*self._pieces, *pieces)))
        return ()

    def finish(self) -> Iterable[str]:
        if self._chosen is not None:
            return self._chosen.finish()
        self._chosen = _LineScanner()
        return (*self._chosen.feed("".join(self._pieces)), *self._chosen.finish())

    def _choice(self, piece: str) -> _LineScanner | JsonScanner | None:
        """Return the scanner that the text up to this piece of a line asks for, if that is sure."""
        if not self._pieces:
            piece = piece.lstrip()
        if not piece:
            return None
        self._pieces.append(piece)
        self._has_line = self._has_line or _has_ended(piece)
        if len(self._opening) < 2:
            self._opening = (self._opening + "".join(piece.split()))[:2]
        may_open = may_follow(self._opening[:1])
        if may_open and len(self._opening) < 2:
            return None
        if may_open and self._opening[1] in may_open:
            return JsonScanner()
        if not self._has_line:
            return None
        first = "".join(self._pieces).splitlines(keepends=True)[0]
        if not _is_around(first, has_begun=False):
            return _LineScanner()
        self._pieces, self._opening, self._has_line = [], "", False
        return None


def _has_ended(text: str) -> bool:
    return text[-1:].splitlines() == [""]


def _is_around(line: str, has_begun: bool) -> bool:
    """Tell whether a line only stands around a list: empty, a fence, or an introduction."""
    text = line.strip()
    if not text or text.startswith(_FENCE):
        return True
    return not has_begun and text.endswith(":") and _ITEM_MARK.match(line) is None


_SCANNERS: dict[ListForm, type[_LineScanner] | type[JsonScanner] | type[_AutoScanner]] = {
    "lines": _LineScanner,
    "json": JsonScanner,
    "auto": _AutoScanner,
}

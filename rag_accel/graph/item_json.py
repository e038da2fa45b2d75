"""An incremental scanner of the texts of a JSON list inside a completion.

The list is the first array that holds a text, wherever it stands. Objects that hold no array give
their first text; so JSON lines are a list too, as are quoted texts one a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_ESCAPE: Final = re.compile(r'\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt]|(.))', re.DOTALL)
_AFTER: Final = {"[": '"{]', "{": '"}'}


@dataclass(slots=True)
class _Open:
    """A container that has not been closed yet."""

    bracket: str
    #: of objects: whether the next text is a key
    wants_key: bool = True
    #: of objects: the first text among the values
    text: str | None = None
    #: once it is closed: whether an array was in it, or an object that gave an item
    is_spent: bool = False


def may_follow(bracket: str) -> str:
    """Return the letters that may follow an opening bracket; after others it belongs to prose."""
    return _AFTER.get(bracket, "")


class JsonScanner:
    """A scanner that gives each text of a JSON list once it is closed.

    ``is_list`` tells whether a list began.
    """

    def __init__(self) -> None:
        self.is_list = False
        self._open: list[_Open] = []
        self._num_open: dict[str, int] = dict.fromkeys(_AFTER, 0)
        #: how many of them, from the outermost, hold an array or an object that gave an item
        self._num_spent = 0
        #: the letters of a text that is not closed yet
        self._letters: list[str] | None = None
        self._is_escaped = False
        #: a bracket outside of all containers, until it is known whether it opens one
        self._pending = ""
        #: a text on a line of its own, until the line has ended
        self._alone: str | None = None
        self._is_line_start = True
        self._gave = False
        self._is_done = False

    def feed(self, text: str) -> Iterator[str]:
        """Yield the texts of the list that this piece has finished."""
        for letter in text:
            if self._is_done:
                return
            item = self._take(letter)
            if item is not None:
                self._gave = self.is_list = True
                yield item

    def finish(self) -> Iterator[str]:
        """Yield what only the end of the text has finished."""
        yield from self.feed("\n")

    def _take(self, letter: str) -> str | None:
        if self._letters is not None:
            return self._inside_text(self._letters, letter)
        if not self._open:
            return self._outside(letter)
        return self._inside(letter)

    # In a text ---------------------------------------------------------------------------------

    def _inside_text(self, letters: list[str], letter: str) -> str | None:
        if letter == "\n" and not self._open:  # a quotation in prose
            self._letters, self._is_escaped, self._is_line_start = None, False, True
            return None
        if letter == '"' and not self._is_escaped:
            self._letters = None
            return self._closed(_decoded("".join(letters)))
        self._is_escaped = letter == "\\" and not self._is_escaped
        letters.append(letter)
        return None

    def _closed(self, text: str) -> str | None:
        if not self._open:
            self._alone = text
            return None
        inner = self._open[-1]
        if inner.bracket == "[":
            return text
        if not inner.wants_key and inner.text is None:
            inner.text = text
        return None

    # Outside of all containers -----------------------------------------------------------------

    def _outside(self, letter: str) -> str | None:
        if self._pending:
            if letter.isspace():
                return None
            bracket, self._pending = self._pending, ""
            if letter in _AFTER[bracket]:
                self._push(bracket)
                return self._inside(letter)
        if letter == "\n":
            item, self._alone = self._alone, None
            self._is_line_start = True
            return item
        if letter in _AFTER:
            self._pending, self._alone, self._is_line_start = letter, None, False
        elif letter == '"' and self._is_line_start:
            self._letters, self._is_line_start = [], False
        elif not letter.isspace():
            self._is_line_start = False
            if letter != ",":
                self._alone = None
        return None

    # In a container ----------------------------------------------------------------------------

    def _inside(self, letter: str) -> str | None:
        inner = self._open[-1]
        if letter == '"':
            self._letters = []
        elif letter in _AFTER:
            self._push(letter)
        elif letter in ",:" and inner.bracket == "{":
            inner.wants_key = letter == ","
        elif letter == "]":
            self._pop("[")
        elif letter == "}":
            return self._end_object()
        return None

    def _push(self, bracket: str) -> None:
        if bracket == "[":
            self.is_list = True
            self._num_spent = len(self._open)
        self._open.append(_Open(bracket))
        self._num_open[bracket] += 1

    def _pop(self, bracket: str) -> _Open | None:
        """Close the innermost container of this kind and what was left open in it."""
        if not self._num_open[bracket]:
            return None
        while True:
            closed = self._open.pop()
            self._num_open[closed.bracket] -= 1
            if closed.bracket == bracket:
                break
        closed.is_spent = len(self._open) < self._num_spent
        self._num_spent = min(self._num_spent, len(self._open))
        self._is_done = bracket == "[" and self._gave and not self._num_open["["]
        return closed

    def _end_object(self) -> str | None:
        closed = self._pop("{")
        if closed is None or closed.is_spent or closed.text is None:
            return None
        self._num_spent = len(self._open)
        return closed.text


def _decoded(letters: str) -> str:
    """Return a JSON text without its quotes decoded; what is no escape loses its backslash."""
    valid = _ESCAPE.sub(lambda found: found[0] if found[1] is None else found[1], letters)
    text: str = json.loads(f'"{valid}"', strict=False)
    # Half a pair of surrogates is no text.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

"""Texts of documents found in the text of a prompt, whole or in parts."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

from rag_accel.kv.segments import TextSpan

#: Bounds for one text: places found, parts of documents searched for, and comparisons.
MOST_PLACES = 256
MOST_PARTS = 2048
_MOST_COMPARED = 1 << 15

#: Breaks by level: a document is cut at blank lines, parts not found at lines, then at sentences.
_BREAKS = (re.compile(r"\n[^\S\n]*\n\s*"), re.compile(r"\n\s*"), re.compile(r"[.!?]\s+"))

_WINDOW = 16
_STRIDE = 8
#: Places kept of one window, as of a line that is repeated; later ones are not found.
_MOST_SAME = 512

#: Shorter texts, in characters, are found by reading.
LEAST_CHARACTERS = _WINDOW + _STRIDE - 1

#: A single part may be chance, such as a heading or the question.
_LEAST_FOUND = 2


def locate(
    text: str,
    documents: Iterable[tuple[str, str]],
    least: int = 1,
    *,
    never: Collection[str] = (),
    parts: bool = False,
) -> list[TextSpan]:
    """Return the spans of documents in a prompt's text, in its order, without overlaps.

    Longer texts are found first, so a text inside another one does not hide it. A text is also
    found without the white space around it. At most ``MOST_PLACES`` are found.

    Args:
        text: of the prompt.
        documents: the id and the text of each.
        least: shorter texts, in characters, are skipped.
        never: texts to skip, without white space around them.
        parts: whether to search for the paragraphs, lines and sentences of a document that is not
            there as a whole, ``MOST_PARTS`` of all documents together; they count where two of one
            document are there.
    """
    search = _PlaceSearch(text, max(1, least), frozenset(never))
    longest_first = sorted(documents, key=lambda document: -len(document[1]))
    missing = [document for document in longest_first if not search.take(*document)]
    if parts:
        for document, wanted in missing:
            search.take_parts(document, wanted)
    return search.found


def parts_of(text: str) -> Iterator[str]:
    """Yield a text and each part of it that ``locate`` looks for, ``MOST_PARTS`` at most."""
    yield text
    yield from islice(_parts(text, 0), MOST_PARTS)


def _parts(text: str, level: int) -> Iterator[str]:
    for part in _pieces(text, level):
        yield part
        if level + 1 < len(_BREAKS):
            yield from _parts(part, level + 1)


class TextAnchors:
    """Windows of a text, at every eighth character, to find many texts without reading it for each.

    Wherever a text of ``LEAST_CHARACTERS`` stands in it, one of these windows is among its first
    characters. So eight look-ups find a text or show that it is missing.

    Args:
        text: the text to search.
    """

    __slots__ = ("_places", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._places: dict[str, list[int]] = {}
        for at in range(0, len(text) - _WINDOW + 1, _STRIDE):
            places = self._places.setdefault(text[at : at + _WINDOW], [])
            if len(places) < _MOST_SAME:
                places.append(at)

    def candidates(self, wanted: str) -> list[int]:
        """Return the places where a text may stand, ascending: some 4,000 at most.

        Raises ValueError for a text that is shorter than ``LEAST_CHARACTERS``.
        """
        if len(wanted) < LEAST_CHARACTERS:
            raise ValueError(f"a text of {len(wanted)} characters has no window of its own")
        found: list[int] = []
        for shift in range(_STRIDE):
            places = self._places.get(wanted[shift : shift + _WINDOW])
            if places:
                found += [at - shift for at in places if at >= shift]
        return sorted(set(found)) if len(found) > 1 else found


class _PlaceSearch:
    """The places found so far in one text."""

    def __init__(self, text: str, least: int, never: frozenset[str]) -> None:
        self.found: list[TextSpan] = []
        self._text = text
        self._least = least
        self._never = never
        self._anchors = TextAnchors(text)
        self._parts_left = MOST_PARTS
        self._compared = 0

    def take(self, document: str, wanted: str) -> bool:
        """Find a text wherever it stands; tell whether it does."""
        stripped = wanted.strip()
        if not self._is_looked_for(stripped):
            return False
        forms = dict.fromkeys((wanted, stripped))
        return any(self._take_all(form, document) for form in forms)

    def take_parts(self, document: str, wanted: str) -> None:
        """Find parts of a document that is not there as a whole."""
        before = list(self.found)
        if self._num_parts_found(document, wanted, 0) < _LEAST_FOUND:
            self.found = before

    def _num_parts_found(self, document: str, wanted: str, level: int) -> int:
        number = 0
        for part in _pieces(wanted, level):
            if self._parts_left <= 0 or len(self.found) >= MOST_PLACES:
                break
            if not self._is_looked_for(part):
                continue
            self._parts_left -= 1
            if self.take(document, part):
                number += 1
            elif level + 1 < len(_BREAKS):
                number += self._num_parts_found(document, part, level + 1)
        return number

    def _is_looked_for(self, stripped: str) -> bool:
        return len(stripped) >= self._least and stripped not in self._never

    def _take_all(self, form: str, document: str) -> bool:
        """Take every place of a form that is left; tell whether there is any, left or not."""
        is_there = False
        for at in self._places(form):
            is_there = True
            if len(self.found) >= MOST_PLACES:
                break
            stop = at + len(form)
            place = bisect_left(self.found, stop, key=lambda span: span.start)
            if not place or self.found[place - 1].stop <= at:
                self.found.insert(place, TextSpan(at, stop, document))
        return is_there

    def _places(self, form: str) -> Iterator[int]:
        if len(form) < LEAST_CHARACTERS:
            return _read(self._text, form)
        if self._compared >= _MOST_COMPARED:
            return iter(())
        candidates = self._anchors.candidates(form)
        self._compared += len(candidates)
        return (at for at in candidates if self._text.startswith(form, at))


def _read(text: str, wanted: str) -> Iterator[int]:
    at = text.find(wanted)
    while at >= 0:
        yield at
        at = text.find(wanted, at + len(wanted))


def _pieces(text: str, level: int) -> Iterator[str]:
    """Yield the texts between the breaks of a level, without white space around them."""
    at = 0
    for found in _BREAKS[level].finditer(text):
        yield text[at : found.end()].strip()
        at = found.end()
    if at or level + 1 < len(_BREAKS):  # a text without a break may have one of the next level
        yield text[at:].strip()

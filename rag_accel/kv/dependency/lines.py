"""Relation paths found in the text of a prompt: lines of retrieved texts, one below the other.

    Facts:
    [1] Ada -> knows -> Alan
    [2] Ada -> wrote -> Notes

A retriever's paths stand in a prompt as texts, each on a line of its own, perhaps behind a number
or a dash. A line that nothing retrieved is text like any other, even if it looks like a path.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from rag_accel.kv.dependency.paths import PATH_END, Segments
from rag_accel.kv.segments import TextSpan

_ARROWS = re.compile(r" (->|<-) ")
_LABEL = r"(?:\[\d+\][ \t]|\d+[.)][ \t]|[-*\u2022][ \t])?"
_LABEL_BEFORE = re.compile(_LABEL + r"[ \t]*\Z")
_BETWEEN = re.compile(r"[ \t]*\n\s*" + _LABEL + r"[ \t]*")
_LABEL_FIRST = re.compile(_LABEL + r"[ \t]*")
_LINE = re.compile(r"[^\n]+")


@dataclass(frozen=True, slots=True)
class PathLines:
    """Neighbouring lines of a text that are relation paths: ``text[start:stop]``."""

    start: int
    stop: int
    paths: tuple[Segments, ...]

    def place(self, text: str) -> TextSpan:
        """Return the place of the lines in their text, with the end of the last one."""
        is_ended = text.startswith(PATH_END, self.stop)
        return TextSpan(self.start, self.stop + is_ended * len(PATH_END))


def parse_path(line: str) -> Segments | None:
    """Return the segments of ``a -> r -> b -> s -> c``; None of any other text.

    Together the segments are the line. Relations may be walked backwards: ``a <- r <- b``.
    """
    pieces = _ARROWS.split(line)
    names, arrows = pieces[::2], pieces[1::2]
    if len(names) < 3 or len(names) % 2 == 0 or not all(name.strip() for name in names):
        return None
    segments = [names[0]]
    for at in range(1, len(names), 2):
        before, behind = arrows[at - 1], arrows[at]
        if before != behind:
            return None
        segments += (f" {before} {names[at]} {behind}", f" {names[at + 1]}")
    return tuple(segments)


def locate_paths(
    text: str, documents: Iterable[tuple[str, str]], never: Collection[str] = ()
) -> Iterator[TextSpan]:
    """Yield the lines of a text that are, but for a label, paths of documents.

    Args:
        text: of a prompt's message.
        documents: the id and the text of each: a path, or text with paths on lines of their own.
        never: texts and lines to skip, without white space around them.
    """
    wanted: dict[str, str] = {}
    for document, retrieved in documents:
        if retrieved.strip() in never:
            continue
        for found in _LINE.finditer(retrieved):
            line = found.group().strip()
            if line not in wanted and line not in never and parse_path(line) is not None:
                wanted[line] = document
    if not wanted:
        return
    for found in _LINE.finditer(text):
        line = found.group().strip()
        label = _LABEL_FIRST.match(line)
        shown = line if line in wanted or label is None else line[label.end() :]
        if shown in wanted:
            stop = found.start() + len(found.group().rstrip())
            yield TextSpan(stop - len(shown), stop, wanted[shown])


def locate_other_lines(
    text: str,
    documents: Iterable[tuple[str, str]],
    least_characters: int,
    never: Collection[str] = (),
) -> Iterator[TextSpan]:
    """Yield where those parts of documents stand in a text that are no relation paths.

    Args:
        text: of a prompt's message.
        documents: the id and the text of each.
        least_characters: shorter parts are left out.
        never: texts to skip, without white space around them.
    """
    seen: set[str] = set()
    for document, retrieved in documents:
        if retrieved.strip() in never:
            continue
        for part in _parts_without_paths(retrieved):
            if len(part) < least_characters or part in seen:
                continue
            seen.add(part)
            at = text.find(part)
            while at >= 0:
                yield TextSpan(at, at + len(part), document)
                at = text.find(part, at + len(part))


def _parts_without_paths(text: str) -> Iterator[str]:
    """Yield the longest parts of a text without a line that is a path."""
    start = 0
    for found in _LINE.finditer(text):
        if parse_path(found.group().strip()) is not None:
            yield text[start : found.start()].strip()
            start = found.end()
    yield text[start:].strip()


def spans_around(text: str, spans: Iterable[TextSpan], lines: PathLines) -> Iterator[TextSpan]:
    """Yield the retrieved texts before and behind the paths of a prompt, nothing twice."""
    behind = 0
    for span in sorted(spans, key=lambda span: (span.start, -span.stop)):
        start = max(span.start, behind)
        for first, last in (
            (start, min(span.stop, lines.start)),
            (max(start, lines.stop), span.stop),
        ):
            if first < last and text[first:last].strip():
                yield TextSpan(first, last, span.document)
        behind = max(behind, span.stop)


def find_path_lines(text: str, spans: Iterable[TextSpan]) -> PathLines | None:
    """Return the longest run of lines that are paths of retrieved texts.

    None where no two paths of it begin alike: there is nothing that a tree would share.

    Args:
        text: of a prompt.
        spans: where retrieved texts stand in it.
    """
    found: PathLines | None = None
    for run in _runs(text, _lines(text, spans)):
        if found is None or len(run.paths) > len(found.paths):
            found = run
    if found is None or len({path[0] for path in found.paths}) == len(found.paths):
        return None
    return found


def _lines(text: str, spans: Iterable[TextSpan]) -> Iterator[tuple[int, int, Segments | None]]:
    """Yield the lines of retrieved texts in their order, without overlaps, each with its path."""
    behind = 0
    for span in sorted(set(spans), key=lambda span: (span.start, -span.stop)):
        for line in _LINE.finditer(text, max(span.start, behind), span.stop):
            shown = line.group()
            start = line.start() + len(shown) - len(shown.lstrip())
            stop = line.start() + len(shown.rstrip())
            if start < stop:
                is_line = _is_whole_line(text, start, stop)
                yield start, stop, parse_path(text[start:stop]) if is_line else None
                behind = stop


def _is_whole_line(text: str, start: int, stop: int) -> bool:
    """Tell whether nothing but a label stands on the same line."""
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", stop)
    rest = text[stop : len(text) if last < 0 else last]
    return not rest.strip() and _LABEL_BEFORE.fullmatch(text[first:start].lstrip()) is not None


def _runs(text: str, lines: Iterable[tuple[int, int, Segments | None]]) -> Iterator[PathLines]:
    """Yield neighbouring lines that are paths, from the label of the first one on."""
    start = stop = 0
    paths: list[Segments] = []
    for first, behind, path in lines:
        is_next = bool(paths) and _BETWEEN.fullmatch(text, stop, first) is not None
        if paths and (path is None or not is_next):
            yield PathLines(start, stop, tuple(paths))
            paths = []
        if path is None:
            continue
        if not paths:
            label = text[text.rfind("\n", 0, first) + 1 : first]
            start = first - len(label.lstrip())
        paths.append(path)
        stop = behind
    if paths:
        yield PathLines(start, stop, tuple(paths))

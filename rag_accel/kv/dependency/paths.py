"""Relation paths as segments of text: entity, relation, entity, ..., and the end of a path.

A text is cut into segments before it is tokenised. Tokenisers merge letters across the borders of
names, so the tokens of two whole paths can differ from the first shared entity on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rag_accel.engine_api import GraphPath
from rag_accel.errors import ConfigError

#: The texts of one path, in order.
Segments = tuple[str, ...]

#: The segment behind each path. It is one of its own, so a path that begins another one has an end
#: that the other has not; and a line break, since then each path is a line of a flat prompt.
PATH_END = "\n"


def path_segments(path: GraphPath) -> Segments:
    """Return the segments of a walked path; together they are its ``text``.

    ``a -> r -> b`` falls into ``a``, `` -> r ->`` and `` b``: a space stands before a name, as
    tokenisers have it.
    """
    segments = [path.entities[0]]
    for relation, entity, forward in zip(
        path.relations, path.entities[1:], path.forward, strict=True
    ):
        arrow = "->" if forward else "<-"
        segments += (f" {arrow} {relation} {arrow}", f" {entity}")
    return tuple(segments)


def checked_paths(paths: Iterable[Iterable[str]], where: str | None = None) -> tuple[Segments, ...]:
    """Return paths as tuples.

    Args:
        paths: the segments of each.
        where: the node of a prompt that they are of, for errors.

    Raises:
        ConfigError: if there is no path, a path has no segment, or a segment is empty or no text.
    """
    found = tuple(
        checked_segments(path, _place(where, "path", number))
        for number, path in enumerate(_items(paths, "paths", where))
    )
    if not found:
        raise ConfigError(
            "a tree has no path",
            where=where,
            valid="at least one path",
            hint="leave the node out of the prompt where nothing was retrieved",
        )
    return found


def checked_segments(segments: Iterable[str], where: str | None = None) -> Segments:
    """Return the segments of one path as a tuple.

    Raises:
        ConfigError: as ``checked_paths`` does.
    """
    found = tuple(_items(segments, "segments", where))
    if not found:
        raise ConfigError("a path has no segment", where=where, valid="at least an entity")
    for number, segment in enumerate(found):
        if not isinstance(segment, str) or not segment:
            check_text(segment, "segment", _place(where, "segment", number))
    return found


def check_text(text: object, kind: str, where: str | None = None) -> None:
    """Raise ConfigError unless this is a text with a letter in it."""
    if not isinstance(text, str):
        raise ConfigError(f"a {kind} is no text", where=where, found=type(text).__name__)
    if not text:
        raise ConfigError(f"an empty {kind}", where=where, valid="a text of one letter or more")


def _items(values: Any, kind: str, where: str | None) -> Iterable[Any]:
    if isinstance(values, str | bytes):
        found = "one text"
    elif not isinstance(values, Iterable):
        found = type(values).__name__
    else:
        return values
    raise ConfigError(f"{kind} are not listed", where=where, found=found, valid=f"a list of {kind}")


def _place(where: str | None, kind: str, number: int) -> str:
    return f"{kind} {number}" if where is None else f"{where}, {kind} {number}"

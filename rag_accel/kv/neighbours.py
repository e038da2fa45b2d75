"""Neighbours of the texts of a corpus by similarity (FusionRAG section 3.1)."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np

from rag_accel.errors import ConfigError

NeighbourOrder = Literal["nearest_last", "nearest_first"]

#: The most neighbours of a text: their digests stand in the header of its file.
MOST_NEIGHBOURS = 32
#: Cached texts that the new ones of a prompt are encoded behind: the last that stand before them.
MOST_BEFORE = 3
#: Texts that are encoded in one sequence, and those that cached ones behind them may have seen.
MOST_TOGETHER = MOST_NEIGHBOURS // 2
#: Cosines that differ by less count as equal: the last digits depend on how products are blocked.
_DIGITS = 6
#: Cosines that are computed at once.
_BLOCK_CELLS = 1 << 24


def neighbours(
    vectors: Any,
    count: int,
    *,
    contents: Sequence[Hashable],
    tokens: Sequence[int],
    room: Sequence[int],
    order: NeighbourOrder = "nearest_last",
) -> list[tuple[int, ...]]:
    """Return for each text the places of its most similar texts, in the order of encoding.

    A text is not its own neighbour, nor is one of the same content, and no content is there twice.
    Of equally similar texts the earlier one is taken; one without room is skipped for less similar
    ones.

    Args:
        vectors: ``[texts, dim]``, float32, of any length; a zero vector is similar to none.
        count: most neighbours of a text.
        contents: equal for texts that count as the same.
        tokens: of each text.
        room: most tokens of the neighbours of each text together.
        order: ``nearest_last`` puts the most similar directly before the text; ``nearest_first`` is
            the paper's order.

    Raises:
        ConfigError: the count, the order or the vectors are not as they should be.
    """
    check_neighbours(count, order)
    if count == 0:
        return [()] * len(contents)
    directions = _directions(vectors, len(contents))
    found: list[tuple[int, ...]] = []
    step = max(1, _BLOCK_CELLS // max(1, len(directions)))
    for start in range(0, len(directions), step):
        cosines = np.round(directions[start : start + step] @ directions.T, _DIGITS)
        for at, row in enumerate(cosines, start):
            chosen = _chosen(row, at, count, contents, tokens, room[at])
            found.append(chosen[::-1] if order == "nearest_last" else chosen)
    return found


def check_neighbours(count: int, order: str = "nearest_last") -> None:
    """Raise ConfigError where a number of neighbours or their order is not known."""
    if not 0 <= count <= MOST_NEIGHBOURS:
        valid = f"0 to {MOST_NEIGHBOURS}"
        raise ConfigError("option out of range", where="neighbours", found=count, valid=valid)
    if order not in get_args(NeighbourOrder):
        valid = " | ".join(get_args(NeighbourOrder))
        raise ConfigError("unknown order", where="neighbour_order", found=order, valid=valid)


def _directions(vectors: Any, count: int) -> Any:
    given = np.asarray(vectors, dtype=np.float32)
    if given.ndim != 2 or len(given) != count or not np.isfinite(given).all():
        raise ConfigError(
            "the vectors are not those of the texts",
            where="vectors",
            found=f"shape {given.shape}",
            valid=f"({count}, dim), finite",
        )
    lengths = np.linalg.norm(given, axis=1, keepdims=True)
    return given / np.where(lengths > 0, lengths, 1)


def _chosen(
    cosines: Any,
    own: int,
    count: int,
    contents: Sequence[Hashable],
    tokens: Sequence[int],
    room: int,
) -> tuple[int, ...]:
    """Return the neighbours of one text, the most similar first."""
    taken: list[int] = []
    seen = {contents[own]}
    for at in _ranked(cosines, 4 * count + 16):
        if len(taken) == count:
            break
        if contents[at] not in seen and tokens[at] <= room:
            taken.append(at)
            seen.add(contents[at])
            room -= tokens[at]
    return tuple(taken)


def _ranked(cosines: Any, first: int) -> Iterator[int]:
    """Yield places by their cosine, then by themselves; the best ones are sorted alone."""
    least = -np.inf
    if first < len(cosines):
        least = np.partition(cosines, -first)[-first]
    for part in (np.flatnonzero(cosines >= least), np.flatnonzero(cosines < least)):
        yield from part[np.argsort(-cosines[part], kind="stable")].tolist()

"""Vectors of entities, and exact search for the nearest, independent of their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rag_accel.engines.knowledge.protocol import Ids
from rag_accel.engines.knowledge.words import best
from rag_accel.errors import GraphLinkError

_CHUNK = 4096


@dataclass(frozen=True, slots=True, eq=False)
class EntityVectors:
    """Vectors of length 1, in the order of the ids of their entities.

    Args:
        ids: ``[n], int64``, ascending.
        rows: ``[n, dim], float32``.
    """

    ids: Ids = field(default_factory=lambda: np.empty(0, np.int64))
    rows: NDArray[np.float32] = field(default_factory=lambda: np.empty((0, 0), np.float32))

    def __len__(self) -> int:
        return len(self.ids)

    def edited(self, hidden: Ids, fresh: EntityVectors) -> EntityVectors:
        """Return them without some, and with others."""
        kept = ~np.isin(self.ids, hidden)
        if kept.all() and not len(fresh):
            return self
        if not kept.any():
            return fresh
        ids, rows = self.ids[kept], self.rows[kept]
        if not len(fresh):
            return EntityVectors(ids, rows)
        places = np.searchsorted(ids, fresh.ids)
        return EntityVectors(
            np.insert(ids, places, fresh.ids), np.insert(rows, places, fresh.rows, axis=0)
        )


def nearest(
    parts: Sequence[EntityVectors],
    hidden: Ids,
    vector: NDArray[np.float32],
    k: int,
) -> Ids:
    """Return the ids of the ``k`` nearest by cosine; equal ones in the order of their ids.

    A product of a matrix and a vector depends, in its last bits, on where a row stands. So those
    that can be among the nearest are scored again, each by itself and by numbers of 64 bits.

    Args:
        parts: all vectors.
        hidden: ids of which the vectors in the first part are not to be found.
        vector: ``[dim], float32``, of length 1.
        k: most entities.
    """
    ids = np.concatenate([part.ids for part in parts])
    scores = np.concatenate([part.rows @ vector for part in parts])
    if len(hidden):
        scores[: len(parts[0])][np.isin(parts[0].ids, hidden)] = -np.inf
    least = -np.inf if k >= len(ids) else np.partition(scores, len(ids) - k)[len(ids) - k]
    margin = 2 * len(vector) * float(np.finfo(np.float32).eps)
    near = np.flatnonzero((scores >= least - margin) & (scores > -np.inf))
    exact = np.concatenate([_scores(rows, vector) for rows in _cut(parts, near)])
    return best(ids[near], exact, k)


def _cut(parts: Sequence[EntityVectors], places: Ids) -> list[NDArray[np.float32]]:
    """Return rows by their places among those of all parts, some thousand at a time."""
    found: list[NDArray[np.float32]] = [np.empty((0, 0), np.float32)]
    first = 0
    for part in parts:
        own = places[(places >= first) & (places < first + len(part))] - first
        found += [part.rows[own[at : at + _CHUNK]] for at in range(0, len(own), _CHUNK)]
        first += len(part)
    return found


def _scores(rows: NDArray[np.float32], vector: NDArray[np.float32]) -> NDArray[np.float64]:
    if not len(rows):
        return np.empty(0)
    return (rows.astype(np.float64) * vector.astype(np.float64)).sum(axis=1)


def unit(vectors: Any) -> NDArray[np.float32]:
    """Return rows of length 1: ``[n, dim]``; a row of zeros stays one."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32, copy=False)


def as_rows(vectors: Any, num: int) -> NDArray[np.float32]:
    """Return a copy of vectors as rows: ``[num, dim], float32``.

    Raises:
        GraphLinkError: if they are no finite numbers, not ``num``, of several lengths or of none.
    """
    valid = f"one finite vector for {num} names, all of one dimension"
    try:
        rows = np.array(vectors, dtype=np.float32)
    except (ValueError, TypeError) as error:
        raise bad_vectors(str(error), valid) from error
    if not num and not rows.size:
        return np.empty((0, 0), np.float32)
    if rows.ndim != 2 or len(rows) != num or not rows.shape[1] or not np.isfinite(rows).all():
        raise bad_vectors(f"shape {rows.shape}", valid)
    return rows


def bad_vectors(found: str, valid: str) -> GraphLinkError:
    """Return the error of values that cannot be vectors of entities."""
    return GraphLinkError("these cannot be the vectors of entities", found=found, valid=valid)

"""Copies of vectors in an index, known by the identity of the objects that were copied."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_accel.engine_api import Document
from rag_accel.engines.retrieval import DocumentIndex, IndexSpec

_NO_METADATA: Mapping[str, Any] = MappingProxyType({})

Rows = npt.NDArray[np.float64]
#: returns vectors ``[n, d]`` as new float64; None where a copy of them is of no use
RowsOf = Callable[[list[Any]], Rows | None]


@dataclass(frozen=True, slots=True)
class Copied:
    """One state of a copy.

    Args:
        version: changes with the others.
        vectors: the copied objects in their places; kept, so that none gets another's identity.
        places: where the vector of each name stands among them, for the first time.
        more_places: where else, if the store has the same object several times.
    """

    version: int
    vectors: list[Any]
    places: Mapping[str, int]
    more_places: Mapping[str, list[int]]

    def stands_for(self, vectors: list[Any]) -> bool:
        """Tell whether these are the very objects that were copied, in their places."""
        return vectors is self.vectors or are_same(vectors, self.vectors)

    def of(self, name: str) -> list[int]:
        """Return all places of a vector."""
        return [self.places[name], *self.more_places.get(name, ())]


class CopiedVectors:
    """An index of a store's vectors.

    Attributes:
        index: inner products of vectors of length one.
        version: that of ``state``, but already the next while the index is being changed.
        state: what the index holds; replaced as a whole.
    """

    def __init__(
        self,
        vectors: list[Any],
        new: list[Any],
        rows: Rows,
        rows_of: RowsOf,
    ) -> None:
        self._rows_of = rows_of
        self.index = DocumentIndex(IndexSpec(rows.shape[1]))
        self.version = 0
        self._names: dict[int, str] = {}
        self._num_named = 0
        self.state = self._take(vectors, new, rows)

    def follow(self, vectors: list[Any]) -> bool:
        """Copy what is new among these, forget what is gone; False if they do not fit."""
        new = [vector for vector in _distinct(vectors) if id(vector) not in self._names]
        rows = self._rows_of(new) if new else np.empty((0, self.index.spec.dimension))
        if rows is None or rows.shape[1] != self.index.spec.dimension:
            return False
        self.state = self._take(vectors, new, rows)
        return True

    def _take(self, vectors: list[Any], new: list[Any], rows: Rows) -> Copied:
        self.version += 1  # before the index changes: what searches it now has seen another
        names, places, more = dict[int, str](), dict[str, int](), dict[str, list[int]]()
        for place, vector in enumerate(vectors):
            name = names.get(id(vector))
            if name is None:
                name = names[id(vector)] = self._names.get(id(vector)) or self._new_name()
                places[name] = place
            else:
                more.setdefault(name, []).append(place)
        self.index.delete(set(self._names.values()) - places.keys())
        documents = [Document(names[id(vector)], "", _NO_METADATA) for vector in new]
        self.index.add(documents, unit(rows))
        self._names = names
        return Copied(self.version, vectors, places, more)

    def _new_name(self) -> str:
        self._num_named += 1
        return str(self._num_named)


def copy_vectors(vectors: list[Any], rows_of: RowsOf) -> CopiedVectors | None:
    """Copy vectors; None where that is of no use."""
    distinct = _distinct(vectors)
    rows = rows_of(distinct)
    return None if rows is None else CopiedVectors(vectors, distinct, rows, rows_of)


def _distinct(vectors: list[Any]) -> list[Any]:
    return list({id(vector): vector for vector in vectors}.values())


def are_same(vectors: list[Any], others: list[Any]) -> bool:
    """Tell whether these are the same objects, in the same places."""
    return len(vectors) == len(others) and all(map(is_, vectors, others))


def rows_of(vectors: Sequence[Any]) -> Rows | None:
    """Return vectors ``[n, d]`` as float64; ``None`` unless they are finite and of one length."""
    try:
        rows = np.asarray(vectors)
    except (TypeError, ValueError):
        return None
    if rows.ndim != 2 or not rows.size or rows.dtype.kind not in "fiu" or rows.itemsize < 4:
        return None
    return rows.astype(np.float64, copy=False) if np.isfinite(rows).all() else None


def unit(rows: Rows) -> Rows:
    """Divide vectors by their lengths, in their place; a zero vector stays one."""
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, np.newaxis]
    return np.divide(rows, np.where(lengths > 0, lengths, 1.0), out=rows)

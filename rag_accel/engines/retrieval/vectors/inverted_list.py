"""The list of one cluster in memory that never changes: of this process, or mapped from a file."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.vectors.spec import Vectors

Bytes = npt.NDArray[np.uint8]

_LABEL_BYTES, _NUMBER_BYTES = 8, 4


class InvertedList:
    """The vectors of one cluster, then their labels, in one piece of memory that never changes.

    Room for an even number of vectors lies before the labels, which begin at a multiple of eight.

    Args:
        data: ``[num_bytes(size, dim)], uint8``, little-endian.
        size: of the cluster.
        dimension: of its vectors.
    """

    __slots__ = ("data", "labels", "vectors")

    def __init__(self, data: Bytes, size: int, dimension: int) -> None:
        end = _NUMBER_BYTES * dimension * size
        start = _vectors_bytes(size, dimension)
        self.data = data
        #: ``[size, dim]``
        self.vectors: Vectors = data[:end].view(np.float32).reshape(size, dimension)
        #: ``[size]``, rising
        self.labels: Labels = data[start:].view(np.int64)

    @classmethod
    def of(cls, vectors: Vectors, labels: Labels) -> InvertedList:
        """Return a list in memory of copies, sorted by label."""
        size, dimension = vectors.shape
        made = cls(np.zeros(num_bytes(size, dimension), dtype=np.uint8), size, dimension)
        order = np.argsort(labels)
        made.vectors[:], made.labels[:] = vectors[order], labels[order]
        return made

    def copy(self) -> InvertedList:
        """Return the same list in other memory."""
        return InvertedList(self.data.copy(), len(self), self.vectors.shape[1])

    def __len__(self) -> int:
        return len(self.labels)


def num_bytes(size: Any, dimension: int) -> Any:
    """Return the bytes of a list, or of lists of ``size: [n]``: multiples of eight."""
    return _vectors_bytes(size, dimension) + _LABEL_BYTES * size


def _vectors_bytes(size: Any, dimension: int) -> Any:
    return _NUMBER_BYTES * dimension * (size + size % 2)

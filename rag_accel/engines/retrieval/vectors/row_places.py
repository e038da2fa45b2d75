"""The places of vectors in FAISS's lists: a table in the place of FAISS's hash map.

The vectors of candidates that a scan of codes found are in no cache, and neither is the hash map,
which costs two more reads for each. The suite "ablation" measures what the table saves
("candidates_in_place").
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.vectors.spec import Vectors

MOST_LABELS = 2  # for each vector; with more, given and removed again, the table would not pay
_NUMBER = np.dtype(np.float32)
_NOWHERE = -1


class RowPlaces:
    """The place of each vector, while none of them moves. Reading is safe from any thread.

    Filled in two passes over the lists: ``see`` each, then ``enter`` each. It knows nothing before
    all have been entered.

    Args:
        dimension: numbers of a vector.
    """

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._low, self._end = 1 << 63, 0  # addresses
        self._last_label = -1
        self._count = self._entered = 0
        self._table: Labels | None = None
        self._memory: Vectors | None = None

    def __reduce__(self) -> tuple[type[RowPlaces], tuple[int]]:
        """Let a copy know nothing: its vectors lie elsewhere."""
        return RowPlaces, (self._dimension,)

    @property
    def num_bytes(self) -> int:
        """Return the bytes that the table takes."""
        return 0 if self._table is None else self._table.nbytes

    def see(self, labels: Labels, rows: Vectors) -> None:
        """Record the place of a list: FAISS's own ``[n]`` and ``[n, dim]``."""
        self._low = min(self._low, rows.ctypes.data)
        self._end = max(self._end, rows.ctypes.data + rows.nbytes)
        self._last_label = max(self._last_label, int(labels.max()))
        self._count += len(labels)

    def enter(self, labels: Labels, rows: Vectors) -> None:
        """Enter a list that was seen, once all were."""
        if self._last_label >= MOST_LABELS * self._count:
            return
        if self._table is None:
            self._table = np.full(self._last_label + 1, _NOWHERE, dtype=np.int64)
            self._memory = self._everything()
        first, rest = divmod(rows.ctypes.data - self._low, _NUMBER.itemsize)
        assert not rest, "FAISS holds numbers at odd addresses"
        self._table[labels] = first + self._dimension * np.arange(len(labels))
        self._entered += len(labels)

    def rows(self, labels: Labels) -> Vectors | None:
        """Return copies of the vectors of ``labels: [n]``; None where it does not know one."""
        if self._table is None or self._memory is None or self._entered < self._count:
            return None
        if not len(labels) or labels.min() < 0 or labels.max() >= len(self._table):
            return None
        places = self._table[labels]
        # ``take`` would copy all that lies between the lists first.
        return None if places.min() < 0 else self._memory[places]

    def _everything(self) -> Vectors:
        """Return the memory from the first list to the last, as a row beginning at each number.

        Most of it belongs to others and is never read.
        """
        numbers = (self._end - self._low) // _NUMBER.itemsize
        memory = SimpleNamespace(
            __array_interface__={
                "version": 3,
                "typestr": _NUMBER.str,
                "data": (self._low, True),
                "shape": (numbers - self._dimension + 1, self._dimension),
                "strides": (_NUMBER.itemsize, _NUMBER.itemsize),
            }
        )
        return np.asarray(memory)

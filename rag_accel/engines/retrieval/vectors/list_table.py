"""Lists of clusters wherever they lie, as one FAISS index: mapped from a file, or in memory.

FAISS's lists on disk are a table of places behind one address. Here that address is zero, so that
each list has an address of its own, and one call of FAISS reads lists of a file and of memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.vectors.cluster_lists import ClusterLists
from rag_accel.engines.retrieval.vectors.inverted_list import InvertedList
from rag_accel.engines.retrieval.vectors.spec import Metric
from rag_accel.engines.retrieval.vectors.vectors import faiss_metric, load_faiss

_Rows = npt.NDArray[np.uint64]


class ListTable(ClusterLists):
    """The lists of all clusters, constant: whoever reads one holds it, and with it their memory.

    Args:
        quantizer: FAISS's index of the centroids.
        metric: of the index.
        lists: of the clusters, in their order; not to be changed.
        rows: FAISS's table of them, if it is known.
    """

    def __init__(
        self,
        quantizer: Any,
        metric: Metric,
        lists: Sequence[InvertedList],
        rows: _Rows | None = None,
    ) -> None:
        faiss = load_faiss()
        rows = np.array([_row(one) for one in lists], np.uint64) if rows is None else rows
        table = faiss.OnDiskInvertedLists()
        table.nlist, table.code_size, table.read_only = len(lists), 4 * quantizer.d, True
        table.lists.resize(len(lists))
        ctypes.memmove(int(table.lists.data().this), rows.ctypes.data, rows.nbytes)
        settings = quantizer, quantizer.d, len(lists), faiss_metric(faiss, metric)
        index = faiss.IndexIVFFlat(*settings)
        index.is_trained, index.ntotal = True, int(rows[:, 0].sum())
        index.replace_invlists(table, False)
        index.referenced_objects = [quantizer, table]
        super().__init__(index, metric)
        self._quantizer, self._rows = quantizer, rows
        self.lists = lists
        #: ``[clusters]``
        self.sizes: Labels = rows[:, 0].astype(np.int64)

    def replaced(self, changed: Mapping[int, InvertedList]) -> ListTable:
        """Return a table of the same lists but for some clusters."""
        lists, rows = [*self.lists], self._rows.copy()
        for cluster, one in changed.items():
            lists[cluster], rows[cluster] = one, _row(one)
        return ListTable(self._quantizer, self._metric, lists, rows)


def _row(one: InvertedList) -> tuple[int, int, int]:
    """Return FAISS's struct for a list: its size, for how many there is room, where it begins."""
    return len(one), len(one) + len(one) % 2, one.data.ctypes.data

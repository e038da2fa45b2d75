"""Vectors in a flat FAISS index, where a search looks at every one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.vectors.spec import IndexSpec, Vectors, norms
from rag_accel.engines.retrieval.vectors.vectors import (
    Rows,
    Scores,
    SearchScope,
    faiss_metric,
    higher_is_nearer,
    load_faiss,
)


class FlatVectors:
    """An index that compares with every vector (FAISS ``IndexFlat``)."""

    num_clusters = 1
    refine = 0

    def __init__(self, spec: IndexSpec) -> None:
        self._faiss = load_faiss()
        self._flat = self._faiss.IndexFlat(spec.dimension, faiss_metric(self._faiss, spec.metric))
        self._index = self._faiss.IndexIDMap(self._flat)
        self._dimension = spec.dimension
        self.metric = spec.metric
        self.max_norm = 0.0

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def num_visited(self, is_filtered: bool, nprobe: int | None) -> int:
        """Return 1: everything is one cluster."""
        return 1

    def rows(self, labels: Labels, vectors: Vectors) -> Rows:
        """Say where vectors are to lie: all in the one cluster there is."""
        return Rows(labels, vectors, np.zeros(len(labels), dtype=np.int64))

    def reserve(self, rows: Rows) -> None:
        """Do nothing: vectors are overwritten where they lie."""

    def add(self, rows: Rows) -> None:
        """Append vectors; labels must rise."""
        if len(rows):
            self.max_norm = max(self.max_norm, float(norms(rows.vectors).max()))
            self._index.add_with_ids(rows.vectors, rows.labels)

    def replace(self, rows: Rows) -> None:
        """Overwrite vectors where they lie."""
        if len(rows):
            self.max_norm = max(self.max_norm, float(norms(rows.vectors).max()))
            self._matrix()[self._places(rows.labels)] = rows.vectors

    def remove(self, labels: Labels) -> None:
        """Remove vectors and close the gaps; the order stays."""
        if len(labels):
            self._drop_unlabelled()
            self._index.remove_ids(labels)

    def gather(self, labels: Labels) -> Vectors:
        """Return copies of the vectors of these labels."""
        if not len(labels):
            return np.empty((0, self._dimension), dtype=np.float32)
        return self._matrix()[self._places(labels)]

    def fetch(self, queries: Vectors, count: int, scope: SearchScope) -> tuple[Scores, Labels]:
        """Scan everything the scope allows."""
        params = None
        if scope.allowed is not None:
            params = self._faiss.SearchParameters(sel=self._faiss.IDSelectorBatch(scope.allowed))
        scores, labels = self._index.search(queries, count, params=params)
        return higher_is_nearer(self.metric, scores), labels

    def fetch_coded(
        self, queries: Vectors, count: int, scope: SearchScope
    ) -> tuple[Scores, Labels]:
        """Do as ``fetch``: there are no codes."""
        return self.fetch(queries, count, scope)

    def _matrix(self) -> Vectors:
        # Views into FAISS's own memory, here and below: used at once, never kept over a change.
        view = self._faiss.rev_swig_ptr(self._flat.get_xb(), len(self) * self._dimension)
        return view.reshape(len(self), self._dimension)

    def _places(self, labels: Labels) -> npt.NDArray[np.intp]:
        rising = self._faiss.rev_swig_ptr(self._index.id_map.data(), len(self))
        return np.searchsorted(rising, labels)

    def _drop_unlabelled(self) -> None:
        # FAISS takes vectors first and their labels then: memory may have run out in between.
        count = min(int(self._index.id_map.size()), int(self._flat.ntotal))
        if count < self._flat.ntotal:
            self._flat.remove_ids(self._faiss.IDSelectorRange(count, self._flat.ntotal))
            self._index.ntotal = count

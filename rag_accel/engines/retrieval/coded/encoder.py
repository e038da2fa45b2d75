"""An encoder of clustered vectors that works a few clusters at a time, so that changes can run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from rag_accel.engines.retrieval.coded.codes import CodedVectors
from rag_accel.engines.retrieval.vectors.cluster_lists import ClusterLists, made_aligned
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors
from rag_accel.engines.retrieval.vectors.spec import Vectors, norms
from rag_accel.engines.retrieval.vectors.vectors import (
    faiss_metric,
    load_faiss,
)

MAX_ENCODED = 1 << 16  # float64 numbers held at once; 512 KiB stay in the cache


class CodedVectorsEncoder:
    """An encoder that reads every cluster twice: for the ranges of its numbers, then for the codes.

    Used on one thread. The clusters must not change from the first call of ``take`` to the last; on
    the way they learn the places of their vectors.

    Args:
        vectors: the vectors to encode.
    """

    def __init__(self, vectors: IvfVectors) -> None:
        self._vectors = vectors
        self._faiss = load_faiss()
        self._lows = np.full(vectors.dimension, np.inf, dtype=np.float32)
        self._highs = np.full(vectors.dimension, -np.inf, dtype=np.float32)
        self._lists: ClusterLists | None = None
        self._places = vectors.new_places()
        self._error = 0.0
        self._next = 0  # cluster of the present look

    @property
    def is_done(self) -> bool:
        """Tell whether all clusters are encoded."""
        return self._lists is not None and self._next == self._vectors.num_clusters

    def take(self, count: int) -> None:
        """Look at the next clusters, at least one, until they hold ``count`` vectors together."""
        if self._next == self._vectors.num_clusters:
            self._lists = self._empty_lists()
            self._next = 0
        look = self._range if self._lists is None else self._encode
        taken = 0
        while self._next < self._vectors.num_clusters and taken < count:
            labels, rows = self._vectors.cluster_rows(self._next)
            if len(labels):
                look(self._next, labels, rows)
            taken += len(labels)
            self._next += 1

    def codes(self) -> CodedVectors:
        """Return the codes of all clusters, once ``is_done``."""
        assert self.is_done, "some clusters are not encoded yet"
        assert self._lists is not None
        steps = self._lists.index.sq
        low, width = np.split(np.abs(self._faiss.vector_to_array(steps.trained)), 2)
        return CodedVectors(
            self._vectors,
            self._lists,
            error=self._error,
            decoded=float(norms((low + width)[None, :])[0]),
            centroid=float(norms(self._vectors.centroids).max()),
        )

    def _range(self, cluster: int, labels: Any, rows: Vectors) -> None:
        self._places.see(labels, rows)
        rest = rows - self._vectors.centroids[cluster]
        np.minimum(self._lows, rest.min(axis=0), out=self._lows)
        np.maximum(self._highs, rest.max(axis=0), out=self._highs)

    def _empty_lists(self) -> ClusterLists:
        lows = np.where(self._lows <= self._highs, self._lows, 0)
        widths = np.where(self._lows <= self._highs, self._highs - self._lows, 0)
        make = _empty_index(self._faiss, self._vectors, np.concatenate([lows, widths]))
        return ClusterLists(partial(made_aligned, make), self._vectors.metric)

    def _encode(self, cluster: int, labels: Any, rows: Vectors) -> None:
        assert self._lists is not None
        self._places.enter(labels, rows)
        index, pointer = self._lists.index, self._faiss.swig_ptr
        clusters = np.full(len(labels), cluster, dtype=np.int64)
        arrays = (np.ascontiguousarray(rows), np.ascontiguousarray(labels), clusters)
        index.add_core(len(labels), *map(pointer, arrays))
        centroid = self._vectors.centroids[cluster].astype(np.float64)
        codes = self._faiss.rev_swig_ptr(index.invlists.get_codes(cluster), rows.size)
        codes = codes.reshape(rows.shape)
        step = max(1, MAX_ENCODED // rows.shape[1])
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            shown = index.sq.decode(np.ascontiguousarray(codes[start : start + step]))
            rest = part.astype(np.float64) - centroid - shown
            squares = np.einsum("ij,ij->i", rest, rest)
            self._error = max(self._error, _upper_length(squares.max(), rows.shape[1]))


def _upper_length(square: float, dimension: int) -> float:
    """Return a number no smaller than the true length, from its square summed in float64."""
    return float(np.sqrt(square)) * (1 + (dimension + 8) * 2.0**-52)


def _empty_index(faiss: Any, vectors: IvfVectors, trained: Any) -> Callable[[], Any]:
    metric = faiss_metric(faiss, vectors.metric)

    def make() -> Any:
        index = faiss.IndexIVFScalarQuantizer(
            vectors.quantizer,
            vectors.dimension,
            vectors.num_clusters,
            faiss.ScalarQuantizer.QT_8bit,
            metric,
            True,  # codes of what is left of a vector without its centroid
        )
        faiss.copy_array_to_vector(np.asarray(trained, dtype=np.float32), index.sq.trained)
        index.is_trained = True
        return index

    return make

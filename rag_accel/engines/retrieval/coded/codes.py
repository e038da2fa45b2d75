"""8-bit codes of clustered vectors, and a proof of which vectors can be among the nearest.

FAISS's scalar quantiser keeps one byte for each number of ``x - c``, the vector less its cluster's
centroid; what a code shows, ``x^``, lies within a *measured* ``e`` of ``x``. So a scan reads a
quarter of the memory, and its scores bound the true ones. Write ``q`` for the query, ``Q`` for its
length, ``u = 2**-24`` for the unit roundoff of float32, ``d`` for the dimension, ``B`` for the
length of what the decoder adds and multiplies at most, and ``C`` for that of the longest centroid.

**Inner product.** ``|q.x - q.x^| <= e Q``. The score is ``q.c`` plus ``q.(x^ - c)``, both sums of
``d`` float32 products in some order, of numbers decoded with a few roundings each: off by at most
``(d + 32) u Q (B + C)``, and ``2 d`` smallest normal numbers for what underflows.

**L2.** ``||q - x| - |q - x^|| <= e``. The score is minus the squared length of a difference that is
computed with an error of at most ``8 u (Q + B + C)``, squared and summed with a relative error of
``(d + 8) u``, which its square root halves; the root of ``d`` smallest normal numbers covers
squares that underflow.

``nearest.prove_nearest`` computes the exact scores of those that come first. Who cannot reach the
``k``-th of them is dropped, strictly below, so that ties stay; whatever was not fetched is bounded
by the last score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rag_accel.clock import Clock
from rag_accel.engine_api import ScoredDocument
from rag_accel.engines.retrieval.coded.kept_codes import KeptCodes
from rag_accel.engines.retrieval.index.contents import IndexView
from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.index.store import DocumentIndex
from rag_accel.engines.retrieval.search_request import Search, grouped
from rag_accel.engines.retrieval.vectors.cluster_lists import ClusterLists, made_aligned
from rag_accel.engines.retrieval.vectors.ivf import MOST_LABELS, IvfVectors
from rag_accel.engines.retrieval.vectors.nearest import (
    SMALLEST_NORMAL,
    UNIT_ROUNDOFF,
    Candidates,
    ExactScores,
    nearest,
)
from rag_accel.engines.retrieval.vectors.spec import Metric, Vectors, norms
from rag_accel.engines.retrieval.vectors.vectors import (
    Scores,
    SearchScope,
    faiss_metric,
    load_faiss,
)

ROUND_UP = 1 + 2.0**-40  # the bounds are a handful of float64 operations
FETCHED_PER_WANTED, FETCHED_MORE = 2, 12  # 29 of a million at most could be among the nearest 10


@dataclass(frozen=True, slots=True)
class CodedVectors:
    """The codes of one state of an index with clusters; see ``nearest.Source``.

    Args:
        vectors: what was encoded.
        lists: codes and labels, in the same clusters.
        error: no vector is farther from what its code shows.
        decoded: ``B`` above.
        centroid: ``C`` above.
    """

    vectors: IvfVectors
    lists: ClusterLists
    error: float
    decoded: float
    centroid: float

    def first_count(self, limit: int) -> int:
        """Return how many to fetch at first where ``limit`` are wanted."""
        return FETCHED_PER_WANTED * limit + FETCHED_MORE

    def fetch(self, queries: Vectors, count: int, scope: SearchScope) -> tuple[Scores, Labels]:
        """Scan the clusters that ``vectors`` would visit; as ``VectorIndex.fetch``."""
        visits, selector = self.vectors.visited(queries, scope), self.vectors.selector(scope)
        return self._scan(queries, count, visits.clusters, selector, visits.numbers)

    def scan(
        self, queries: Vectors, count: int, clusters: Labels, selector: Any
    ) -> tuple[Scores, Labels]:
        """Scan given clusters; as ``IvfVectors.scan``."""
        numbers = self.vectors.centroid_scores(queries, clusters)
        return self._scan(queries, count, clusters, selector, numbers)

    def _scan(
        self, queries: Vectors, count: int, clusters: Labels, selector: Any, numbers: Scores
    ) -> tuple[Scores, Labels]:
        # A distance needs the query's own difference to a centroid, an inner product its score.
        coarse = numbers if self.vectors.metric is Metric.INNER_PRODUCT else None
        sizes = self.vectors.cluster_sizes()
        return self.lists.scan(queries, count, clusters, selector, sizes, coarse)

    def candidates(self, queries: Vectors, scores: Scores, labels: Labels) -> Candidates:
        """Return what the exact scores behind ``scores: [n, m]`` are at most."""
        with np.errstate(invalid="ignore"):  # rows that ended early are padded with infinities
            highest = self.highest(norms(queries)[:, None], scores.astype(np.float64))
        return Candidates(labels, highest[:, -1], highest)

    def highest(self, lengths: ExactScores, found: ExactScores) -> ExactScores:
        """Return what the true scores behind ``found: [n, m]`` are at most.

        ``lengths: [n, 1]`` are those of the queries.
        """
        dimension = self.vectors.dimension
        magnitude = self.decoded + self.centroid
        if self.vectors.metric is Metric.INNER_PRODUCT:
            error = self.error * lengths
            error = error + (dimension + 32) * UNIT_ROUNDOFF * lengths * magnitude
            return found + (error + 2 * dimension * SMALLEST_NORMAL) * ROUND_UP
        relative = (dimension + 8) * UNIT_ROUNDOFF
        error = self.error + 8 * UNIT_ROUNDOFF * (lengths + magnitude)
        error = (error + np.sqrt(dimension * SMALLEST_NORMAL)) * ROUND_UP
        distance = np.sqrt(-found)
        return -np.square(np.maximum(0.0, distance * (1 - relative) - error) / ROUND_UP)


# Make the 8-bit codes of clustered vectors a few clusters at a time, so that changes can run.

MAX_ENCODED = 1 << 16  # float64 numbers held at once; 512 KiB stay in the cache


class CodedVectorsEncoder:
    """An encoder that reads every cluster twice: for the ranges of its numbers, then for the codes.

    Used on one thread.

    The clusters must not change from the first call of ``take`` to the last. They are told where
    their vectors lie on the way.

    Args:
        vectors: what to encode.
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


# Search a large index with clusters by its 8-bit codes: FAISS reads a quarter of the memory.
#
# Results are those of ``DocumentIndex.search``, in ids, order and scores: codes only say which
# vectors can be among the nearest, and the vectors decide.


BYTES_BESIDE_CODES = 8 * (1 + MOST_LABELS)  # of each vector: its label, and where it lies


class CodedLists:
    """An index encoded as FAISS's 8-bit lists, one byte for each number; a ``CodeKind``."""

    def nbytes(self, vectors: IvfVectors) -> float:
        """Return what codes, labels and places need at most."""
        return len(vectors) * (vectors.dimension + BYTES_BESIDE_CODES)

    def encoder(self, vectors: IvfVectors) -> CodedVectorsEncoder:
        """Return an encoder."""
        return CodedVectorsEncoder(vectors)


class CodedSearches:
    """Searches by codes, one by one or in crowds. Used on one thread; the index may change.

    Args:
        index: what to search.
        clock: measures what making the codes takes.
        max_code_bytes: most memory for the codes.
    """

    def __init__(self, index: DocumentIndex, clock: Clock, max_code_bytes: int) -> None:
        self.kept: KeptCodes[CodedVectors] = KeptCodes(index, clock, max_code_bytes, CodedLists())
        self._index = index

    def search(self, crowd: Sequence[Search]) -> list[list[ScoredDocument]] | None:
        """Return the results of searches with equal filters; None if there are no codes now."""
        with self._index.reading():
            view = self._index.view()
            codes = self.kept.codes(view)
            if codes is None:
                return None
            places = {search.id: place for place, search in enumerate(crowd)}
            found: list[list[ScoredDocument]] = [[]] * len(crowd)
            for group in grouped(crowd, Search.group_key):
                for search, hits in zip(group, _searched(view, codes, group), strict=True):
                    found[places[search.id]] = hits
            return found

    def close(self) -> None:
        """Forget the codes."""
        self.kept.close()


def _searched(
    view: IndexView, codes: CodedVectors, group: Sequence[Search]
) -> list[list[ScoredDocument]]:
    query = group[0].query
    queries = np.stack([search.vector for search in group])
    scope = view.scope(query.where, query.nprobe)
    hits = nearest(view.vectors, queries, [one.query.k for one in group], scope, codes)
    return [view.scored(hit) for hit in hits]

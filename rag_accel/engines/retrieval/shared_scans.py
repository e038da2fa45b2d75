"""Let a crowd of waiting searches share one scan of codes: each cluster is read once for all.

Results are those of ``DocumentIndex.search``, in ids, order and scores: both find the float64
nearest of the same clusters, and equal scores come by insertion (``scan/cluster_scan.py``).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rag_accel.clock import Clock
from rag_accel.engine_api import ScoredDocument
from rag_accel.engines.retrieval.checks import Vectors
from rag_accel.engines.retrieval.coded_searches import CodedLists
from rag_accel.engines.retrieval.documents import Labels
from rag_accel.engines.retrieval.ivf_vectors import IvfVectors
from rag_accel.engines.retrieval.kept_codes import KeptCodes
from rag_accel.engines.retrieval.nearest import Hits, limit_of, nearest
from rag_accel.engines.retrieval.scan import ClusterCodes, scan
from rag_accel.engines.retrieval.scan.codes import MAX_CODE_DIMENSION
from rag_accel.engines.retrieval.scan.encoder import ClusterEncoder
from rag_accel.engines.retrieval.scan.integer_product import exact_product
from rag_accel.engines.retrieval.search_request import Search
from rag_accel.engines.retrieval.search_view import IndexView
from rag_accel.engines.retrieval.store import DocumentIndex
from rag_accel.engines.retrieval.vectors import thread_count

MIN_CROWD = 32  # below, 8-bit lists were as fast or faster in every size of index
NO_CLUSTERS: Labels = np.empty(0, dtype=np.int64)
BYTES_BESIDE_CODES = 28  # of each vector: its label, scale and lengths


class ScanRows:
    """Encode an index as signed bytes for the scan of ``scan/``; a ``CodeKind``."""

    def nbytes(self, vectors: IvfVectors) -> float:
        """Return what these codes need beside the lists that any search can use."""
        if vectors.dimension > MAX_CODE_DIMENSION:
            return math.inf
        own = len(vectors) * (vectors.dimension + BYTES_BESIDE_CODES)
        return own + CodedLists().nbytes(vectors)

    def prepare(self) -> None:
        """Find a product of bytes; trying those there are takes a while."""
        exact_product()

    def encoder(self, vectors: IvfVectors) -> ClusterEncoder:
        """Return an encoder."""
        return ClusterEncoder(vectors.centroids, vectors.cluster_sizes(), vectors.cluster_rows)


class SharedScans:
    """Search crowds by shared scans. Used on one thread; the index may change.

    A crowd is searches with equal filters; ``k`` and ``nprobe`` may differ.

    Args:
        index: what to search.
        clock: measures what making the codes takes.
        max_code_bytes: most memory for these codes and the lists of ``CodedSearches`` together.
    """

    def __init__(self, index: DocumentIndex, clock: Clock, max_code_bytes: int) -> None:
        self.kept: KeptCodes[ClusterCodes] = KeptCodes(index, clock, max_code_bytes, ScanRows())
        self._index = index

    def search(self, crowd: Sequence[Search], threads: int) -> list[list[ScoredDocument]] | None:
        """Return the results of each search; None if there are no codes now."""
        with self._index.reading():
            view = self._index.view()
            codes = self.kept.codes(view)
            if codes is None:
                return None
            return [view.scored(hits) for hits in _hits(view, codes, crowd, threads)]

    @property
    def is_at_hand(self) -> bool:
        """Tell whether torch, which multiplies the codes, is imported.

        A program that does without it should not stand still for a second to import it.
        """
        return "torch" in sys.modules

    def close(self) -> None:
        """Forget the codes."""
        self.kept.close()


def _hits(
    view: IndexView, codes: ClusterCodes, crowd: Sequence[Search], threads: int
) -> list[Hits]:
    vectors = view.vectors
    assert isinstance(vectors, IvfVectors), "codes of an index without clusters"
    scope = view.scope(crowd[0].query.where, None)
    queries = np.stack([search.vector for search in crowd])
    probes: list[Labels] = [NO_CLUSTERS] * len(crowd)
    for nprobe in {search.query.nprobe for search in crowd}:
        rows = [row for row, search in enumerate(crowd) if search.query.nprobe == nprobe]
        visited = vectors.visited(queries[rows], replace(scope, nprobe=nprobe)).clusters
        for row, clusters in zip(rows, visited, strict=True):
            probes[row] = clusters
    limits = [limit_of(search.query.k, scope.size) for search in crowd]

    def fetch(labels: Labels) -> Vectors:
        with thread_count(1):
            return vectors.gather(labels)

    hits = scan(
        codes,
        fetch,
        queries,
        probes,
        limits,
        vectors.metric,
        allowed=scope.allowed,
        threads=threads,
    )
    short = [row for row, limit in enumerate(limits) if len(hits[row].labels) < limit]
    if short:  # their clusters hold too few: every cluster is visited
        every = replace(scope, nprobe=vectors.num_clusters)
        found = nearest(vectors, queries[short], [limits[row] for row in short], every)
        for row, one in zip(short, found, strict=True):
            hits[row] = one
    return hits

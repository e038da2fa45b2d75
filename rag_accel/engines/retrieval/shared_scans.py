"""Let a crowd of waiting searches share one scan of the codes, where that was measured to pay.

Results are those of ``DocumentIndex.search``, in ids, order and scores: both find the float64
nearest of the same clusters, and equal scores come by insertion (``scan/cluster_scan.py``).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from rag_accel.clock import Clock
from rag_accel.engine_api import ScoredDocument
from rag_accel.engines.retrieval.checks import Vectors
from rag_accel.engines.retrieval.crossover import Crossover, Way
from rag_accel.engines.retrieval.documents import Labels
from rag_accel.engines.retrieval.ivf_vectors import IvfVectors
from rag_accel.engines.retrieval.kept_codes import KeptCodes
from rag_accel.engines.retrieval.nearest import Hits, limit_of, nearest
from rag_accel.engines.retrieval.scan import ClusterCodes, scan
from rag_accel.engines.retrieval.search_request import Search
from rag_accel.engines.retrieval.search_view import IndexView
from rag_accel.engines.retrieval.store import DocumentIndex
from rag_accel.engines.retrieval.vectors import thread_count

MIN_CROWD = 4  # one scan never pays for fewer
MIN_NUMBERS = 1 << 24  # of an index; below, a whole search takes FAISS a fraction of a millisecond
MIN_READ = 1 << 20  # numbers that a search reads; fewer take FAISS about as long as planning a scan
MAX_CODE_BYTES = 4 << 30


class SharedScans:
    """Search crowds by shared scans. Used on one thread; the index may change.

    A crowd is searches with equal filters; ``k`` and ``nprobe`` may differ. Nothing is held before
    the first crowd of ``MIN_CROWD`` on an index with clusters and at least ``MIN_NUMBERS`` numbers
    of which each search reads ``MIN_READ``.

    Args:
        index: what to search.
        clock: measures what crowds cost.
        max_code_bytes: most memory for codes, see ``KeptCodes``.
    """

    def __init__(
        self, index: DocumentIndex, clock: Clock, max_code_bytes: int = MAX_CODE_BYTES
    ) -> None:
        self.kept = KeptCodes(index, clock, max_code_bytes)
        self._index = index
        self._clock = clock
        self._crossover = Crossover()
        self._known: ClusterCodes | None = None

    def pays(self, num_searches: int, compared: int) -> bool:
        """Tell whether the index is large, and the searches read, enough to look closer.

        ``compared`` is the number of vectors that all of them together are compared with.
        """
        dimension = self._index.spec.dimension
        is_large = len(self._index) * dimension >= MIN_NUMBERS
        return is_large and compared * dimension >= MIN_READ * num_searches

    def way(self, crowd: Sequence[Search], compared: int, threads: int) -> Way:
        """Return how a crowd is searched next; asks for codes where there are none."""
        with self._index.viewing() as view:
            codes = self.kept.codes(view)
            if codes is None:
                self._known = None  # or the memory of outdated codes would stay in use
                self.kept.want(view)
                return Way.EACH
        if codes is not self._known:
            self._crossover.forget()
            self._known = codes
        return self._crossover.choose(_kind(crowd, compared, threads), len(crowd).bit_length())

    def observe(
        self, crowd: Sequence[Search], compared: int, threads: int, way: Way, seconds: float
    ) -> None:
        """Take what a crowd cost; only what was measured while there were codes counts."""
        if self._known is not None and compared > 0:
            kind, size = _kind(crowd, compared, threads), len(crowd).bit_length()
            self._crossover.observe(kind, size, way, seconds / compared)

    def search(self, crowd: Sequence[Search], threads: int) -> list[list[ScoredDocument]] | None:
        """Return the results of each search; None if the index has changed since ``way``."""
        with self._index.viewing() as view:
            codes = self.kept.codes(view)
            if codes is None:
                return None
            return [view.scored(hits) for hits in _hits(view, codes, crowd, threads)]

    def close(self) -> None:
        """Forget the codes."""
        self.kept.close()
        self._known = None


def _kind(crowd: Sequence[Search], compared: int, threads: int) -> Hashable:
    """Return what crowds have in common that cost about the same for each comparison."""
    each = compared // len(crowd)
    return each.bit_length(), threads, bool(crowd[0].query.where)


def _hits(
    view: IndexView, codes: ClusterCodes, crowd: Sequence[Search], threads: int
) -> list[Hits]:
    vectors = view.vectors
    assert isinstance(vectors, IvfVectors), "codes of an index without clusters"
    scope = view.scope(crowd[0].query.where, None)
    queries = np.stack([search.vector for search in crowd])
    # One by one, as a search alone does it: see ``IvfVectors.visited``.
    probes = [
        vectors.visited(query[None, :], replace(scope, nprobe=search.query.nprobe))[0]
        for query, search in zip(queries, crowd, strict=True)
    ]
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

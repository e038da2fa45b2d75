"""Scans of clusters piece by piece: their learned cost, the choice of a piece, their progress.

The oldest search decides which clusters are read next, within bounds of size and demand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_accel.engines.retrieval.coded.codes import CodedVectors
from rag_accel.engines.retrieval.index.contents import IndexView
from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors
from rag_accel.engines.retrieval.vectors.nearest import (
    GROWTH,
    SOURCE_FETCHES,
    Candidates,
    IndexSource,
)
from rag_accel.engines.retrieval.vectors.spec import Vectors
from rag_accel.engines.retrieval.vectors.vectors import NO_LABEL, Scores, SearchScope

_WINDOW = 32  # observations kept
_MIN_PER_VECTOR_S = 1e-12


class ScanCost:
    """The cost ``base_s + per_vector_s * vectors`` (HedraRAG 4.2: clusters differ in size).

    Both are medians over the latest observations, so that scans delayed by another process count
    little. They are observed apart: a time budget leads to scans of about one size, and a line
    through those would say little about either.

    Args:
        base_s: first guess of the cost of a scan without vectors, in seconds.
        per_vector_s: first guess of the seconds that one vector adds.
    """

    def __init__(self, base_s: float, per_vector_s: float) -> None:
        self.base_s = base_s
        self.per_vector_s = per_vector_s
        self._bases: deque[float] = deque(maxlen=_WINDOW)
        self._rates: deque[float] = deque(maxlen=_WINDOW)

    def predict_s(self, vectors: float) -> float:
        """Return the predicted seconds of comparing with ``vectors`` vectors."""
        return self.base_s + self.per_vector_s * vectors

    def vectors_in(self, seconds: float) -> float:
        """Return how many vectors can be compared in this time; 0 if not even the base fits."""
        return max(0.0, seconds - self.base_s) / self.per_vector_s

    def observe(self, vectors: int, scan_s: float, base_s: float) -> None:
        """Take the seconds that one scan spent on its vectors and besides them.

        A scan without vectors, or on a clock that stood still, says nothing and is ignored.
        """
        if vectors <= 0 or scan_s <= 0.0:
            return
        self._bases.append(max(0.0, base_s))
        self._rates.append(scan_s / vectors)
        self.base_s = median(self._bases)
        self.per_vector_s = max(_MIN_PER_VECTOR_S, median(self._rates))


class ScanCosts:
    """The costs of scans of several kinds.

    Args:
        per_vector_s: first guess for every kind.
    """

    def __init__(self, per_vector_s: float) -> None:
        self._per_vector_s = per_vector_s
        self._costs: dict[Hashable, ScanCost] = {}

    def of(self, kind: Hashable, base_s: float) -> ScanCost:
        """Return the cost of a kind; ``base_s`` is the first guess of its base."""
        if kind not in self._costs:
            self._costs[kind] = ScanCost(base_s, self._per_vector_s)
        return self._costs[kind]


@dataclass(frozen=True, slots=True)
class PieceLimits:
    """The bounds of one piece, in vectors.

    Args:
        least_work: comparisons below which a piece is not worth its overhead.
        most_work: comparisons it should not exceed, all searches together.
        most_read: different vectors it should not exceed beyond ``least_work``, so that they are
            still in the cache when the next search compares with them.
        is_needed: whether one cluster is chosen even if none fits.
    """

    least_work: float
    most_work: float = np.inf
    most_read: float = np.inf
    is_needed: bool = True


def choose_clusters(
    rests: Iterable[Labels], sizes: Labels, demand: npt.NDArray[Any], limits: PieceLimits
) -> Labels:
    """Return the clusters of the next piece; none if none fits and none is needed.

    Args:
        rests: for each search, oldest first, the clusters it has still to read, nearest first.
            Younger searches are asked only while the piece is smaller than ``least_work``.
        sizes: vectors in each cluster, ``[num_clusters]``.
        demand: how many searches want each cluster, ``[num_clusters]``.
        limits: when to stop.
    """
    chosen: list[Labels] = []
    is_chosen = np.zeros(len(sizes), dtype=bool)
    work = read = 0.0
    most_work = max(limits.most_work, limits.least_work)
    for rest in rests:
        new = rest[~is_chosen[rest]] if chosen else rest
        size = sizes[new]
        work_items = work + (size * demand[new]).cumsum()
        reads = read + size.cumsum()
        fits = (work_items <= limits.least_work) | (work_items <= most_work) & (
            reads <= limits.most_read
        )
        count = int(np.count_nonzero(fits))  # both sums rise: those that fit come first
        count = max(count, int(limits.is_needed and not chosen))
        if count:
            chosen.append(new[:count])
            is_chosen[new[:count]] = True
            work, read = float(work_items[count - 1]), float(reads[count - 1])
        if count < len(new) or work >= limits.least_work:
            break
    return np.concatenate(chosen) if chosen else np.empty(0, dtype=np.int64)


Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ScanFilter:
    """A metadata filter in the form that scans with equal filters share.

    Args:
        condition: equal for equal filters.
        allowed: labels that match; None means all.
        size: how many match.
        selector: FAISS's form of ``allowed``.
    """

    condition: Hashable
    allowed: Labels | None
    size: int
    selector: Any

    @classmethod
    def of(
        cls, view: IndexView, condition: Hashable, where: Mapping[str, Any] | None
    ) -> ScanFilter:
        """Look up which documents of a view match."""
        scope = view.scope(where, None)
        return cls(condition, scope.allowed, scope.size, _clusters(view).selector(scope))


class ClusterScan:
    """The progress of one search over clusters (HedraRAG 4.2: a retrieval in sub-stages).

    It holds the clusters still to be read and the ``width`` candidates of highest FAISS score so
    far. No vector outside them has a higher score than the last of them, so that
    ``nearest.prove_nearest`` can prove the result. Scores come from codes where there are some,
    from the vectors where codes do not suffice. Valid for one state of the index.

    Args:
        view: the index, held still.
        query: ``[dim], float32``.
        nprobe: clusters to visit, as in ``SearchScope``.
        limit: how many of the matching documents are wanted; at least 1.
        filter: the documents that may be found.
        codes: of this state of the index, if there are any.
    """

    def __init__(
        self,
        view: IndexView,
        query: Vectors,
        nprobe: int | None,
        limit: int,
        filter: ScanFilter,
        codes: CodedVectors | None = None,
    ) -> None:
        self.version = view.version
        self.vectors = _clusters(view)
        self.limit = limit
        self.filter = filter
        scope = SearchScope(filter.size, filter.allowed, nprobe)
        self.order = self.vectors.visited(query[None, :], scope).clusters[0]
        self.codes = codes
        self._starts = 0
        self._start(_power_of_two(self._source.first_count(limit)))

    @property
    def width(self) -> int:
        """Return how many candidates are kept: a power of two, so that many scans agree on it."""
        return len(self.labels)

    @property
    def is_done(self) -> bool:
        """Tell whether no cluster is left to be read."""
        return not self.wanted.any()

    @property
    def holds_all(self) -> bool:
        """Tell whether all that was read is kept."""
        return bool(self.labels[-1] == NO_LABEL) or self.width >= self.filter.size

    @property
    def lists(self) -> IvfVectors | CodedVectors:
        """Return the lists that are scanned."""
        return self.vectors if self.codes is None else self.codes

    def is_of(self, view: IndexView) -> bool:
        """Tell whether the index is still as it was when this scan began."""
        return self.version == view.version and self.vectors is view.vectors

    def rest(self) -> Labels:
        """Return the clusters still to be read, nearest first."""
        return self.order[self.wanted[self.order]]

    def widen(self) -> None:
        """Begin again with more candidates: those kept did not suffice to prove the nearest."""
        if self.codes is not None and self._starts == SOURCE_FETCHES:
            self.codes = None
            self._start(_power_of_two(self._source.first_count(self.limit)))
            return
        self._start(self.width * GROWTH)

    def visit_all(self) -> bool:
        """Go on through every other cluster, as those visited hold too few; False without one."""
        is_other = np.ones(len(self.wanted), dtype=bool)
        is_other[self.order] = False
        self.wanted = is_other
        self.order = np.concatenate([self.order, np.flatnonzero(is_other)])
        return bool(is_other.any())

    @property
    def _source(self) -> IndexSource | CodedVectors:
        return IndexSource(self.vectors) if self.codes is None else self.codes

    def _start(self, width: int) -> None:
        self._starts += 1
        self.wanted: Mask = np.zeros(self.vectors.num_clusters, dtype=bool)
        self.wanted[self.order] = True
        self.scores: Scores = np.full(width, -np.inf, dtype=np.float32)
        self.labels: Labels = np.full(width, NO_LABEL, dtype=np.int64)


def take(scans: list[ClusterScan], clusters: Labels, scores: Scores, labels: Labels) -> None:
    """Merge the hits of ``clusters``, ``[n, width]`` each, into scans of one width."""
    if len(scans) == 1:  # the usual case, for which stacking takes longer than sorting
        scan = scans[0]
        all_scores = np.concatenate([scan.scores, scores[0]])
        all_labels = np.concatenate([scan.labels, labels[0]])
        best = np.argsort(-all_scores, kind="stable")[: scores.shape[1]]
        scan.wanted[clusters] = False
        scan.scores, scan.labels = all_scores[best], all_labels[best]
        return
    all_scores = np.concatenate([np.stack([scan.scores for scan in scans]), scores], axis=1)
    all_labels = np.concatenate([np.stack([scan.labels for scan in scans]), labels], axis=1)
    # Stable, and what FAISS pads a row with is worth less than any vector: found ones stay first.
    best = np.argsort(-all_scores, axis=1, kind="stable")[:, : scores.shape[1]]
    rows = np.arange(len(scans))[:, None]
    kept_scores, kept_labels = all_scores[rows, best], all_labels[rows, best]
    for row, scan in enumerate(scans):
        scan.wanted[clusters] = False
        scan.scores, scan.labels = kept_scores[row], kept_labels[row]


def candidates(scans: Sequence[ClusterScan], queries: Vectors) -> Candidates:
    """Return which can be among the nearest, for scans of one width over the same lists."""
    found = scans[0]._source.candidates(
        queries,
        np.stack([scan.scores for scan in scans]),
        np.stack([scan.labels for scan in scans]),
    )
    holds_all = np.asarray([scan.holds_all for scan in scans])
    return replace(found, bounds=np.where(holds_all, -np.inf, found.bounds))


def _clusters(view: IndexView) -> IvfVectors:
    assert isinstance(view.vectors, IvfVectors), "only an index with clusters is read in steps"
    return view.vectors


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()

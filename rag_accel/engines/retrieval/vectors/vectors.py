"""The interface of vector indexes, and the access to FAISS, which is imported when first needed.

Fetched candidates are a first guess: FAISS computes in float32, in an order of summation that may
change with the batch, and breaks ties by heap position. ``nearest.py`` makes it exact.

Vectors are really removed, without tombstones: a search never pays for deleted ones, and one
without a filter never needs a selector. A flat index closes the gaps (memory moves once for
each call, not for each vector); an IVF index moves the last vector of the cluster into the gap,
found through a hash table, in constant time.

Nothing here locks: concurrent reads are safe, a change needs the index to itself. Where an
exception breaks a change off, wherever it comes, ``replace`` and ``remove`` are completed by
calling them again, and ``reserve`` and ``add`` are undone by removing the labels.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.vectors.spec import Metric, Vectors

Scores = npt.NDArray[np.float32]

NO_LABEL = -1
UNIT_ROUNDOFF = 2.0**-24  # of float32
SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True)
class SearchScope:
    """The vectors that one search may return, and the clusters it visits.

    Args:
        size: how many vectors are in scope, all clusters taken together.
        allowed: labels it may return; None allows all.
        nprobe: clusters to visit; None takes the index's own number, or every cluster when
            ``allowed`` is given. A flat index ignores it.
    """

    size: int
    allowed: Labels | None = None
    nprobe: int | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """Vectors and the clusters they belong to.

    Args:
        labels: ``[n]``.
        vectors: ``[n, dim]``.
        clusters: ``[n]``; all 0 in a flat index.
    """

    labels: Labels
    vectors: Vectors
    clusters: Labels

    def __len__(self) -> int:
        return len(self.labels)

    def where(self, is_chosen: npt.NDArray[np.bool_]) -> Rows:
        if is_chosen.all():  # the usual case, and there may be gigabytes of them
            return self
        chosen = (self.labels[is_chosen], self.vectors[is_chosen], self.clusters[is_chosen])
        return Rows(*chosen)


class VectorIndex(Protocol):
    """Vectors under increasing labels."""

    @property
    def metric(self) -> Metric:
        """Return the metric."""
        ...

    @property
    def max_norm(self) -> float:
        """Return a length that no vector exceeds."""
        ...

    @property
    def num_clusters(self) -> int:
        """Return the largest ``nprobe`` that makes a difference."""
        ...

    @property
    def refine(self) -> int:
        """Return how many candidates ``fetch_coded`` is to find for each hit; 0 without codes."""
        ...

    def __len__(self) -> int: ...

    def rows(self, labels: Labels, vectors: Vectors) -> Rows:
        """Say where vectors ``[n, dim]`` are to lie; changes nothing."""
        ...

    def reserve(self, rows: Rows) -> None:
        """Take the memory that ``replace`` will need for these, so that it does not fail."""
        ...

    def add(self, rows: Rows) -> None:
        """Take vectors under labels above all present ones."""
        ...

    def replace(self, rows: Rows) -> None:
        """Exchange the vectors of present labels."""
        ...

    def remove(self, labels: Labels) -> None:
        """Forget labels; unknown ones are ignored."""
        ...

    def gather(self, labels: Labels) -> Vectors:
        """Return the vectors of present labels, ``[n, dim]``."""
        ...

    def fetch(self, queries: Vectors, count: int, scope: SearchScope) -> tuple[Scores, Labels]:
        """Return scores (higher is nearer) and labels, both ``[n, count]``, best first.

        Ends a row with ``NO_LABEL`` where it ran out of vectors.
        """
        ...

    def fetch_coded(
        self, queries: Vectors, count: int, scope: SearchScope
    ) -> tuple[Scores, Labels]:
        """Do as ``fetch`` by the codes of the vectors: scores, and so labels, are approximate."""
        ...


def load_faiss() -> Any:
    """Import FAISS; ImportError naming the extra that brings it."""
    try:
        import faiss  # of a module that is loaded this takes a tenth of import_module's time

        return faiss
    except ImportError as error:
        raise ImportError(
            "the document index needs faiss: pip install 'rag-accel[local]'", name="faiss"
        ) from error


def faiss_metric(faiss: Any, metric: Metric) -> int:
    """Return FAISS's number of a metric."""
    return faiss.METRIC_INNER_PRODUCT if metric is Metric.INNER_PRODUCT else faiss.METRIC_L2


def higher_is_nearer(metric: Metric, scores: Scores) -> Scores:
    """Turn FAISS's numbers into scores: L2 distances are negated."""
    return scores if metric is Metric.INNER_PRODUCT else -scores


class thread_count:  # noqa: N801 - used as a function
    """A block in which FAISS computes on ``threads`` threads in the calling thread.

    OpenMP keeps this number for each thread, so no other thread notices. In a forked child the
    thread that forked computes on one.
    """

    __slots__ = ("_before", "_faiss", "_threads")

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def __enter__(self) -> None:
        faiss = self._faiss = load_faiss()
        self._before = faiss.omp_get_max_threads()
        is_alone = threading.get_ident() in _alone
        faiss.omp_set_num_threads(1 if is_alone else max(1, self._threads))

    def __exit__(self, *raised: object) -> None:
        self._faiss.omp_set_num_threads(self._before)


_alone: set[int] = set()
"""In a forked child: the thread that forked."""


def _compute_alone() -> None:
    # OpenMP's threads are not in the child, and the one that had worked with them before the fork
    # would wait for them for ever. Threads that begin in the child get new ones.
    faiss = sys.modules.get("faiss")
    if faiss is not None:
        _alone.clear()
        _alone.add(threading.get_ident())
        faiss.omp_set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_compute_alone)

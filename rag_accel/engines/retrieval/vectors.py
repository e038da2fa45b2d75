"""Say how vectors are held and fetched, and import FAISS when it is first needed.

What is fetched is a first guess: FAISS computes in float32, in an order of summation that may
change with the batch, and breaks ties by heap position. ``nearest.py`` makes it exact.

Vectors are really removed, no tombstones are kept: a search never pays for what was deleted, and
one without a filter never needs a selector. A flat index closes the gaps (memory moves once for
each call, not for each vector); an IVF index moves the last vector of the cluster into the gap,
found through a hash table, in constant time.

Nothing here locks: concurrent reads are safe, a change needs the index to itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rag_accel.engines.retrieval.checks import Vectors
from rag_accel.engines.retrieval.documents import Labels
from rag_accel.engines.retrieval.index_spec import Metric

Scores = npt.NDArray[np.float32]

NO_LABEL = -1


@dataclass(frozen=True, slots=True)
class Scope:
    """Say what one search may look at.

    Args:
        size: how many vectors it may look at, all clusters taken together.
        allowed: labels it may return; None allows all.
        nprobe: clusters to visit; None takes the index's own number, or every cluster when
            ``allowed`` is given. A flat index ignores it.
    """

    size: int
    allowed: Labels | None = None
    nprobe: int | None = None


class VectorIndex(Protocol):
    """Hold vectors under increasing labels."""

    @property
    def metric(self) -> Metric:
        """Return how vectors are compared."""
        ...

    @property
    def max_norm(self) -> float:
        """Return a length that no vector exceeds."""
        ...

    @property
    def num_clusters(self) -> int:
        """Return the largest ``nprobe`` that makes a difference."""
        ...

    def __len__(self) -> int: ...

    def add(self, labels: Labels, vectors: Vectors) -> None:
        """Take vectors ``[n, dim]`` under labels above all present ones."""
        ...

    def replace(self, labels: Labels, vectors: Vectors) -> None:
        """Exchange the vectors of present labels."""
        ...

    def remove(self, labels: Labels) -> None:
        """Forget present labels."""
        ...

    def gather(self, labels: Labels) -> Vectors:
        """Return the vectors of present labels, ``[n, dim]``."""
        ...

    def fetch(self, queries: Vectors, count: int, scope: Scope) -> tuple[Scores, Labels]:
        """Return scores (higher is nearer) and labels, both ``[n, count]``, best first.

        Ends a row with ``NO_LABEL`` where it ran out of vectors.
        """
        ...


def load_faiss() -> Any:
    """Import FAISS; ImportError naming the extra that brings it."""
    try:
        return importlib.import_module("faiss")
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


@contextmanager
def thread_count(threads: int) -> Generator[None]:
    """Let FAISS compute on ``threads`` threads in the calling thread until the block ends.

    OpenMP keeps this number for each thread, so no other thread notices.
    """
    faiss = load_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(max(1, threads))
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)

"""Let many queries share one pass over the clusters they visit.

For each query FAISS reads every vector of every cluster it visits. Here the *clusters* are walked:
each is read once, as bytes, and multiplied with all queries that visit it. (HedraRAG section 4.2
cuts a search at the borders of clusters; that queries share the reading is ours.) The products
decide nothing. ``certificate.py`` says how far they may be off, and whatever may belong among the
nearest is scored again from the vectors as ``nearest.py`` does. So labels, order and scores are
those of a float64 search of the same clusters, bit by bit, for every batch and every number of
threads.

Threads: the work is cut into pieces that are independent, and each thread takes the next one. One
thread per piece wakes nobody between products; a team inside each product would wait hundreds of
times in a scan for a member that the operating system has paused.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from rag_accel.engines.retrieval.checks import Vectors, checked_vectors
from rag_accel.engines.retrieval.documents import Labels, Mask
from rag_accel.engines.retrieval.index_spec import Metric, check_positive
from rag_accel.engines.retrieval.nearest import Hits
from rag_accel.engines.retrieval.scan.candidates import Candidates, Fetch, Settler, joined
from rag_accel.engines.retrieval.scan.certificate import Certificate, encode_queries
from rag_accel.engines.retrieval.scan.codes import ClusterCodes
from rag_accel.engines.retrieval.scan.integer_product import exact_product
from rag_accel.engines.retrieval.scan.plan import Piece, Visits, check_probes, plan, visits
from rag_accel.engines.retrieval.scan.walk import Walker
from rag_accel.engines.torch_threads import thread_count
from rag_accel.errors import ConfigError

MAX_QUERIES = 256  # of one walk; bounds what is held per query and cluster
WORTH_A_THREAD = 1 << 26  # products of two numbers; a second thread costs about half a millisecond


def scan(
    codes: ClusterCodes,
    vectors: Vectors | Fetch,
    queries: Vectors,
    probes: Sequence[Any] | Labels,
    ks: Sequence[int],
    metric: Metric,
    *,
    allowed: Labels | None = None,
    threads: int = 1,
) -> list[Hits]:
    """Return for each query its ``ks[i]`` nearest vectors in the clusters it visits.

    Best first, equal scores by label; fewer where its clusters hold fewer. Does not change its
    arguments, and any number of scans may run at once. Takes up to 256 queries at a time, for
    which it holds three bytes per query and cluster, and some ten megabytes for each thread.

    Args:
        codes: what ``encode_clusters`` made of ``vectors``.
        vectors: ``[n, dim], float32``, C-contiguous; as they were encoded. Or a function that
            returns those of given labels, called by every thread that computes.
        queries: ``[m, dim], float32``.
        probes: for each query the clusters it visits, nearest first for speed; -1 is none.
        ks: for each query how many it wants; numbers below 1 find none.
        metric: how vectors are compared.
        allowed: labels that may be found; None allows all.
        threads: how many threads compute, the caller's included. Torch's own number is 1 in each
            of them until the call returns, and unchanged in every other thread.

    Raises:
        ConfigError: arguments whose shapes do not fit together, clusters that do not exist.
        EngineOutputError: a query that is not finite or too long.
        ImportError: torch is not installed.
    """
    check_positive("threads", threads)
    exact_product()  # imports torch before its threads are counted
    metric = Metric(metric)
    queries = checked_vectors(queries, codes.dimension, lambda row: f"queries[{row}]")
    if not callable(vectors):
        _check_vectors(codes, vectors)
    clusters = check_probes(probes, len(queries), codes.num_clusters)
    limits = _checked_limits(ks, len(queries), len(codes))
    is_allowed = None if allowed is None else np.isin(codes.labels, np.asarray(allowed))
    hits: list[Hits] = []
    for start in range(0, len(queries), MAX_QUERIES):
        part = slice(start, start + MAX_QUERIES)
        certificate = Certificate(metric, codes.dimension)
        coded = encode_queries(queries[part])
        reached = np.full(len(coded.scales), -np.inf)
        settler = Settler(codes, vectors, queries[part], coded, certificate, limits[part], reached)
        wanted = [
            probe[: len(probe) if limit else 0]
            for probe, limit in zip(clusters[part], limits[part], strict=True)
        ]
        hits += _nearest(settler, visits(codes, wanted), is_allowed, threads)
    return hits


def _nearest(settler: Settler, seen: Visits, is_allowed: Mask | None, threads: int) -> list[Hits]:
    found = settler.settled(_walk(settler, seen, is_allowed, threads))
    labels = settler.labels(found)
    edges = np.searchsorted(found.query, np.arange(len(settler.limits) + 1)).tolist()
    return [
        Hits(labels[start:stop], found.lower[start:stop])
        for start, stop in itertools.pairwise(edges)
    ]


def _walk(settler: Settler, seen: Visits, is_allowed: Mask | None, threads: int) -> Candidates:
    allowance = settler.certificate.allowance(settler.coded)
    pieces = _Shared(plan(settler.codes, seen))

    def work() -> Candidates:
        with thread_count(1):
            return Walker(settler, allowance, is_allowed).walk(pieces)

    helpers = min(threads - 1, _size(settler.codes, seen) // WORTH_A_THREAD)
    if helpers < 1:
        return work()
    with ThreadPoolExecutor(helpers, thread_name_prefix="rag-accel-scan") as pool:
        others = [pool.submit(work) for _ in range(helpers)]
        own = work()
        return joined([own, *(other.result() for other in others)])


class _Shared:
    """Hand each item of an iterator to exactly one of several threads."""

    def __init__(self, items: Iterator[Piece]) -> None:
        self._items = items
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        with self._lock:
            return next(self._items)


def _size(codes: ClusterCodes, seen: Visits) -> int:
    """Return about how many products of two numbers a walk computes."""
    visitors = np.count_nonzero(seen.is_visited, axis=0)
    return int(visitors @ np.diff(codes.starts)) * codes.dimension


def _check_vectors(codes: ClusterCodes, vectors: Vectors) -> None:
    shape = (len(codes), codes.dimension)
    # Sums along another memory order would round in another way.
    fits = vectors.shape == shape and vectors.dtype == np.float32 and vectors.flags.c_contiguous
    if not fits:
        raise ConfigError(
            "not the vectors that were encoded",
            where="vectors",
            found=f"shape {vectors.shape}, {vectors.dtype}",
            valid=f"shape {shape}, float32, C-contiguous",
        )


def _checked_limits(ks: Sequence[int], count: int, size: int) -> Labels:
    if len(ks) != count:
        raise ConfigError(
            "not one number of results for each query",
            where="ks",
            found=f"{len(ks)} numbers",
            valid=f"{count} integers",
        )
    return np.asarray([max(0, min(int(k), size)) for k in ks], dtype=np.int64)

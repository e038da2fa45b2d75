"""Scans of one query's clusters, piece by piece: what is read, what is left, the nearest so far.

A piece is what HedraRAG calls a sub-stage of a retrieval (section 4.2). FAISS's own threads wait
for each other at the end of each call, which made eight pieces take 1.3 to 2 times as long as one
call. So each call of FAISS here runs on one thread, and the pieces of all queries are shared out
among threads of ours: eight pieces then take 1.02 to 1.15 times as long.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.vectors.spec import Vectors
from rag_accel.engines.retrieval.vectors.vectors import NO_LABEL, Scores, thread_count

#: numbers that a thread reads at least: fewer take less time than its start
LEAST_SHARE = 1 << 20
#: seconds in which a thread has surely begun
_BEGUN_S = 1.0


class ReadLists(Protocol):
    """Lists of an IVF index that are read on the calling thread's FAISS threads."""

    def read(
        self, queries: Vectors, count: int, clusters: Labels, coarse: Scores, selector: Any
    ) -> tuple[Scores, Labels]:
        """Return scores (higher is nearer) and labels, ``[n, count]``, best first.

        Args:
            queries: ``[n, dim]``.
            count: how many to find; a row that runs out ends with ``NO_LABEL``.
            clusters: ``[n, m]``, where -1 stands for none.
            coarse: ``[n, m]``, FAISS's numbers for the centroids.
            selector: FAISS's; other vectors are skipped; None skips none.
        """
        ...


class ClusterScan:
    """One query's scan. Used by one thread at a time.

    Args:
        query: ``[dim], float32``.
        count: how many candidates it keeps.
        clusters: ``[m]``, in the order in which they are read.
        coarse: ``[m]``, FAISS's numbers for their centroids.
        sizes: ``[m]``, vectors in each.
        selector: as in ``ReadLists.read``.
    """

    __slots__ = (
        "_behind",
        "clusters",
        "coarse",
        "count",
        "labels",
        "position",
        "query",
        "scores",
        "selector",
    )

    def __init__(
        self,
        query: Vectors,
        count: int,
        clusters: Labels,
        coarse: Scores,
        sizes: Labels,
        selector: Any = None,
    ) -> None:
        self.query = query
        self.count = count
        self.clusters = clusters
        self.coarse = coarse
        self.selector = selector
        #: vectors in the clusters up to each one, itself included
        self._behind = np.cumsum(sizes)
        #: how many clusters are read
        self.position = 0
        #: the nearest that were read, best first; where fewer were, ``NO_LABEL`` ends the labels
        self.scores = np.full(count, -np.inf, dtype=np.float32)
        self.labels = np.full(count, NO_LABEL, dtype=np.int64)

    @property
    def num_vectors(self) -> int:
        """Return how many vectors all its clusters hold."""
        return int(self._behind[-1]) if len(self._behind) else 0

    @property
    def num_read(self) -> int:
        """Return how many of them are read."""
        return int(self._behind[self.position - 1]) if self.position else 0

    @property
    def num_left(self) -> int:
        """Return how many of them are not read."""
        return self.num_vectors - self.num_read

    @property
    def is_over(self) -> bool:
        """Tell whether every cluster is read."""
        return self.position == len(self.clusters)

    def stop(self, position: int | None = None) -> None:
        """Read no cluster from ``position`` on, by default none any more."""
        end = max(self.position, self.position if position is None else position)
        self.clusters, self.coarse = self.clusters[:end], self.coarse[:end]
        self._behind = self._behind[:end]

    def leave(self, places: Labels) -> None:
        """Read of the clusters that are not read only some, in this order: places among them."""
        chosen = np.concatenate([np.arange(self.position), self.position + places])
        sizes = np.diff(self._behind, prepend=0)[chosen]
        self.clusters, self.coarse = self.clusters[chosen], self.coarse[chosen]
        self._behind = np.cumsum(sizes)

    def until(self, num_vectors: int) -> int:
        """Return where a piece ends that reads so many vectors more, and at least one cluster."""
        end = int(np.searchsorted(self._behind, self.num_read + num_vectors, side="left")) + 1
        return min(max(end, self.position + 1), len(self.clusters))

    def cut(self, start: int, end: int, num_vectors: int) -> int:
        """Return the cluster of ``start`` to ``end`` behind which ``num_vectors`` are read."""
        before = int(self._behind[start - 1]) if start else 0
        return min(end, int(np.searchsorted(self._behind, before + num_vectors, side="left")) + 1)

    def vectors_in(self, start: int, end: int) -> int:
        """Return how many vectors the clusters from ``start`` to ``end`` hold."""
        if start >= end:
            return 0
        return int(self._behind[end - 1]) - (int(self._behind[start - 1]) if start else 0)

    def take(self, scores: Scores, labels: Labels) -> None:
        """Keep the best of what was found until now and of what more clusters hold."""
        scores = np.where(labels == NO_LABEL, -np.inf, scores)
        all_scores = np.concatenate([self.scores, scores])
        order = np.argsort(-all_scores, kind="stable")[: self.count]
        self.scores = all_scores[order]
        self.labels = np.concatenate([self.labels, labels])[order]


class ScanPiece(NamedTuple):
    """The clusters of one scan from ``start`` to ``end``, exclusive."""

    scan: ClusterScan
    start: int
    end: int

    @property
    def num_vectors(self) -> int:
        """Return how many vectors it reads."""
        return self.scan.vectors_in(self.start, self.end)


def advance(lists: ReadLists, pieces: Sequence[ScanPiece], threads: int) -> None:
    """Read the next piece of each scan, shared out among at most so many threads.

    A scan appears in one piece at most. All of them are read, or an exception leaves every scan as
    it was.
    """
    shares = _shared_out(pieces, threads)
    found: list[list[tuple[Scores, Labels]]] = [[] for _ in shares]

    def read(place: int) -> None:
        found[place] = _read(lists, shares[place])

    _at_once([lambda place=place: read(place) for place in range(len(shares))])
    for share, results in zip(shares, found, strict=True):
        for piece, (scores, labels) in zip(share, results, strict=True):
            piece.scan.take(scores, labels)
    for piece in pieces:
        piece.scan.position = piece.end


def _shared_out(pieces: Sequence[ScanPiece], threads: int) -> list[list[ScanPiece]]:
    """Return parts of the pieces that take each thread about as long; a piece may be cut."""
    total = sum(piece.num_vectors for piece in pieces)
    dimension = len(pieces[0].scan.query) if pieces else 1
    threads = max(1, min(threads, total * dimension // LEAST_SHARE))
    shares: list[list[ScanPiece]] = [[]]
    left = -(-total // threads)
    for piece in pieces:
        scan, start, end = piece
        while start < end:
            is_last = len(shares) == threads
            cut = end if is_last else scan.cut(start, end, left)
            shares[-1].append(ScanPiece(scan, start, cut))
            left -= scan.vectors_in(start, cut)
            start = cut
            if left <= 0 and not is_last:
                shares.append([])
                left = -(-total // threads)
    return [share for share in shares if share]


def _read(lists: ReadLists, share: Sequence[ScanPiece]) -> list[tuple[Scores, Labels]]:
    """Read some pieces on this thread, those with the same selector in one call of FAISS."""
    found: dict[int, tuple[Scores, Labels]] = {}
    groups: dict[tuple[int, int], list[int]] = {}
    for place, piece in enumerate(share):
        groups.setdefault((id(piece.scan.selector), piece.scan.count), []).append(place)
    with thread_count(1):
        for (_, count), places in groups.items():
            width = max(share[place].end - share[place].start for place in places)
            clusters = np.full((len(places), width), -1, dtype=np.int64)
            coarse = np.zeros((len(places), width), dtype=np.float32)
            for row, place in enumerate(places):
                scan, start, end = share[place]
                clusters[row, : end - start] = scan.clusters[start:end]
                coarse[row, : end - start] = scan.coarse[start:end]
            queries = np.stack([share[place].scan.query for place in places])
            selector = share[places[0]].scan.selector
            scores, labels = lists.read(queries, count, clusters, coarse, selector)
            for row, place in enumerate(places):
                found[place] = scores[row], labels[row]
    return [found[place] for place in range(len(share))]


def _at_once(calls: Sequence[Callable[[], None]]) -> None:
    """Make all calls at the same time, the last one here; raise the first error once all ended."""
    errors: list[BaseException] = []

    def attempt(call: Callable[[], None], begun: threading.Event) -> None:
        begun.set()
        try:
            call()
        except BaseException as error:
            errors.append(error)

    started: list[tuple[threading.Thread, threading.Event]] = []
    try:
        try:
            for call in calls[:-1]:
                begun = threading.Event()
                thread = threading.Thread(target=attempt, args=(call, begun), name="rag-accel-scan")
                started.append((thread, begun))
                try:
                    thread.start()
                except RuntimeError:  # the process cannot have another
                    started.pop()
                    attempt(call, begun)
            for call in calls[-1:]:
                attempt(call, threading.Event())
        finally:  # they read memory that the caller holds a lock of
            _join(started)
    finally:  # also where that was interrupted
        _join(started)
    if errors:
        raise errors[0]


def _join(started: Sequence[tuple[threading.Thread, threading.Event]]) -> None:
    """Return once no thread runs; one whose start was interrupted may not have begun."""
    for thread, begun in started:
        if begun.wait(_BEGUN_S):
            thread.join()

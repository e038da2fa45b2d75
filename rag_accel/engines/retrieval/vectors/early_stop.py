"""Searches that stop early by a rule learned from the index's own searches (HedraRAG 4.3).

A cluster whose centroid lies farther than the k-th best score so far, by more than a slack, is not
read. No bound of geometry is tight enough for real vectors, so the slack is learned: of each search
read in full the gap between its k-th best score and the farthest centroid that it needed is noted,
and the slack is their conformal quantile. A later search like these needs a larger one with a
probability of at most ``1 - share``. The rule knows no order of clusters, and reading more never
hurts: a provisional k-th best is worse than the final one, which lets more clusters be read.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rag_accel.engines.retrieval.vectors.cluster_scans import ClusterScan, ScanPiece
from rag_accel.engines.retrieval.vectors.ivf import IvfVectors
from rag_accel.engines.retrieval.vectors.nearest import MARGIN, Hits, limit_of, nearest
from rag_accel.engines.retrieval.vectors.spec import Metric, Vectors
from rag_accel.engines.retrieval.vectors.stop_calibration import Calibration
from rag_accel.engines.retrieval.vectors.vectors import SearchScope, higher_is_nearer, load_faiss
from rag_accel.errors import ConfigError
from rag_accel.system.locks import RenewedLock

BORDERS = (1 / 16, 1 / 8, 1 / 4, 1 / 2)  # shares of the vectors behind which the rule is applied
LEAST_NUMBERS = 1 << 23  # that a search reads for borders to pay: some 2 ms on one thread
MOST_CHANGED = 1 / 4  # of the documents, before an index learns again

#: names of counts; the vectors are the ones of stopped searches
COUNTS: tuple[str, ...] = (
    "stopped_searches",
    "vectors_read",
    "vectors_unread",
    "stop_checks",
    "stop_checks_equal",
)


@dataclass(frozen=True, slots=True)
class StopReport:
    """The calibration of searches for about as many results, ``least_k`` to ``2 * least_k - 1``.

    Args:
        least_k: a power of two.
        observed: searches read in full whose gaps are kept.
        slack: in units of scores; None while it learns, and every search is read in full.
        share_read: of the vectors that stopped searches would have read; 1.0 if none was stopped.
        checked: stopped searches that were compared with the same read in full.
        share_equal: of these, with the same set of results; 1.0 before the first.
    """

    least_k: int
    observed: int
    slack: float | None
    share_read: float
    checked: int
    share_equal: float

    def __str__(self) -> str:
        """Return the line that ``Accelerator.explain`` shows."""
        begun = f"searches for {self.least_k} to {2 * self.least_k - 1} results stop early:"
        if self.slack is None:
            return f"{begun} learning, {self.observed} read in full"
        return (
            f"{begun} {self.share_read:.0%} of the vectors read; "
            f"{self.checked} compared, {self.share_equal:.1%} of these found the same documents"
        )


class EarlyStop:
    """The calibrations of one index by the number of results; used from any thread.

    Args:
        share: as ``IndexSpec.stop``.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._lock = RenewedLock()
        self._by_bits: dict[int, Calibration] = {}
        self._changed = 0
        self.counts = dict.fromkeys(COUNTS, 0)

    def changed(self, num_changed: int, num_documents: int) -> None:
        """Count changed documents; forget everything once they are too many."""
        with self._lock.lock:
            self._changed += num_changed
            if self._changed > MOST_CHANGED * num_documents:
                self._changed = 0
                self._by_bits.clear()

    def reports(self) -> tuple[StopReport, ...]:
        """Return a report for each number of results in bits, fewest first."""
        with self._lock.lock:
            return tuple(_report(*entry) for entry in sorted(self._by_bits.items()) if entry[0])

    def saved(self, centroids: Vectors) -> dict[str, Any]:
        """Return the state for ``restore`` of an index with these clusters, in values of JSON."""
        with self._lock.lock:
            of_each = {
                str(bits): {"gaps": list(of.gaps), "checked": list(of.checked)}
                for bits, of in self._by_bits.items()
            }
            return {
                "clusters": _identity(centroids),
                "stop": self._share,
                "changed": self._changed,
                "calibrations": of_each,
            }

    def restore(self, saved: Mapping[str, Any], centroids: Vectors) -> None:
        """Take over a saved state; outcomes of comparisons only if the share is the same.

        Raises:
            ConfigError: it is of other clusters, or no saved state.
        """
        try:
            clusters, is_same = saved["clusters"], saved["stop"] == self._share
            by_bits = {
                int(bits): Calibration(self._share, of["gaps"], of["checked"] if is_same else ())
                for bits, of in saved["calibrations"].items()
            }
            changed = int(saved["changed"])
            if min(by_bits, default=1) < 1:
                raise ValueError(f"calibrations of {min(by_bits)} bits")
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            found = f"{type(error).__name__}: {error}"
            raise _bad_calibration(found, "the calibration of a snapshot") from error
        if clusters != (own := _identity(centroids)):
            raise _bad_calibration(f"clusters {clusters!r}", f"clusters {own!r}")
        with self._lock.lock:
            self._changed, self._by_bits = changed, by_bits

    def calibrate(
        self, index: IvfVectors, queries: Vectors, ks: Sequence[int], scope: SearchScope
    ) -> None:
        """Read searches in full and note their gaps."""
        limits = [limit_of(k, scope.size) for k in ks]
        self._observe(index, queries, limits, nearest(index, queries, limits, scope))

    def nearest(
        self, index: IvfVectors, queries: Vectors, ks: Sequence[int], scope: SearchScope
    ) -> list[Hits]:
        """Do as ``nearest.nearest``, stopping where a calibration allows it.

        A filtered search, a search with an ``nprobe`` of its own and a short one are read in full.
        """
        visited = len(index) * index.num_visited(False, None) // index.num_clusters
        is_short = visited * index.dimension < LEAST_NUMBERS
        if scope.allowed is not None or scope.nprobe is not None or is_short:
            return nearest(index, queries, ks, scope)
        limits = [limit_of(k, scope.size) for k in ks]
        slacks, full = self._planned(limits)
        hits = dict[int, Hits]()
        if full:
            wanted = [limits[row] for row in full]
            found = nearest(index, queries[full], wanted, scope)
            self._observe(index, queries[full], wanted, found)
            hits.update(zip(full, found, strict=True))
        if slacks:
            rows = list(slacks)
            wanted = [limits[row] for row in rows]
            found = self._stopped(index, queries[rows], wanted, list(slacks.values()), scope)
            for row, stopped in zip(rows, found, strict=True):
                self._check(limits[row], stopped, hits.setdefault(row, stopped))
        return [hits[row] for row in range(len(limits))]

    def _planned(self, limits: Sequence[int]) -> tuple[dict[int, float], list[int]]:
        """Return the slacks of rows that can be stopped, and the rows that are read in full."""
        slacks, full = dict[int, float](), list[int]()
        with self._lock.lock:
            for row, limit in enumerate(limits):
                calibration = self._of(limit)
                slack = calibration.slack
                if slack is not None:
                    slacks[row] = slack
                if slack is None or calibration.is_turn_to_check():
                    full.append(row)
        return slacks, full

    def _of(self, limit: int) -> Calibration:
        return self._by_bits.setdefault(limit.bit_length(), Calibration(self._share))

    def _stopped(
        self,
        index: IvfVectors,
        queries: Vectors,
        limits: Sequence[int],
        slacks: Sequence[float],
        scope: SearchScope,
    ) -> list[Hits]:
        scans = index.begin(queries, min(max(limits) + MARGIN, scope.size), scope)
        totals = [scan.num_vectors for scan in scans]
        read_until_stopped(index, scans, limits, slacks)
        with self._lock.lock:
            for limit, scan, total in zip(limits, scans, totals, strict=True):
                calibration = self._of(limit)
                calibration.num_read += scan.num_read
                calibration.num_vectors += total
                self.counts["vectors_read"] += scan.num_read
                self.counts["vectors_unread"] += total - scan.num_read
                self.counts["stopped_searches"] += 1
        scores, labels = (
            np.stack([getattr(scan, name) for scan in scans]) for name in ("scores", "labels")
        )
        return nearest(index, queries, limits, scope, fetched=(scores, labels))

    def _observe(
        self, index: IvfVectors, queries: Vectors, limits: Sequence[int], hits: Sequence[Hits]
    ) -> None:
        gaps = [
            (limit, index.gap(query, found.labels, float(found.scores[-1])))
            for query, limit, found in zip(queries, limits, hits, strict=True)
            if limit
        ]
        with self._lock.lock:
            for limit, gap in gaps:
                self._of(limit).observe(gap)

    def _check(self, limit: int, stopped: Hits, full: Hits) -> None:
        if stopped is full:
            return
        is_equal = set(stopped.labels.tolist()) == set(full.labels.tolist())
        with self._lock.lock:
            self.counts["stop_checks"] += 1
            self.counts["stop_checks_equal"] += is_equal
            self._of(limit).check(is_equal)


def read_until_stopped(
    index: IvfVectors,
    scans: Sequence[ClusterScan],
    limits: Sequence[int],
    slacks: Sequence[float],
) -> None:
    """Read scans from border to border, by centroid, leaving far clusters out at each.

    The last results of their requests do not help: behind the first border the k-th best is so near
    the final one that seeds saved less than 1 % of the reading.
    """
    threads, totals = load_faiss().omp_get_max_threads(), [scan.num_vectors for scan in scans]
    for border in (*BORDERS, 1.0):
        ends = [math.ceil(border * total) for total in totals]
        pieces = [
            ScanPiece(scan, scan.position, scan.until(end - scan.num_read))
            for scan, end in zip(scans, ends, strict=True)
            if not scan.is_over and (end > scan.num_read or border == 1.0)
        ]
        index.advance(pieces, threads)
        for scan, limit, slack in zip(scans, limits, slacks, strict=True):
            leave_far_clusters(scan, limit, slack, index.metric)


def leave_far_clusters(scan: ClusterScan, limit: int, slack: float, metric: Metric) -> None:
    """Read no cluster of a scan whose centroid lies behind the k-th best by more than a slack."""
    unread = higher_is_nearer(metric, scan.coarse[scan.position :])
    scan.leave(np.flatnonzero(unread >= float(scan.scores[limit - 1]) - slack))


def _report(bits: int, of: Calibration) -> StopReport:
    checked = len(of.checked)
    share_equal = sum(of.checked) / checked if checked else 1.0
    share_read = of.num_read / of.num_vectors if of.num_vectors else 1.0
    return StopReport(1 << (bits - 1), len(of.gaps), of.slack, share_read, checked, share_equal)


def _identity(centroids: Vectors) -> str:
    return hashlib.sha256(centroids.astype("<f4").tobytes()).hexdigest()


def _bad_calibration(found: str, valid: str) -> ConfigError:
    return ConfigError(
        "a calibration of early stops that does not belong to the index",
        where="calibration",
        found=found,
        valid=valid,
        hint="leave it out (calibration=None) and calibrate the index again",
    )

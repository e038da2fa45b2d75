"""Half-done searches, kept between steps that read a few clusters (HedraRAG 4.2, 5).

The oldest search says which clusters are read next; every other search that wants one of them
reads it too, while it is in the cache. No search gets a slice of its own before the older ones are
done: with a slice for everybody all would end late.

A search answers from one state of the index, the one it ends in. If the index has changed since it
began, it begins again. Once it is the oldest and has begun again ``MAX_RESTARTS`` times, it is read
to its end without letting a change in between: nothing runs for ever.

Differs: the paper gives each request of a batch its next clusters up to the time budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rag_accel.clock import Clock
from rag_accel.engine_api import EngineOutput, WorkId
from rag_accel.engines.retrieval.coded.codes import CodedVectors
from rag_accel.engines.retrieval.index.contents import IndexView
from rag_accel.engines.retrieval.index.documents import Labels
from rag_accel.engines.retrieval.index.store import DocumentIndex
from rag_accel.engines.retrieval.search_request import Search
from rag_accel.engines.retrieval.stepped.scan import (
    ClusterScan,
    PieceLimits,
    ScanCost,
    ScanFilter,
    candidates,
    choose_clusters,
    take,
)
from rag_accel.engines.retrieval.vectors.nearest import Hits, limit_of, prove_nearest

MAX_RESTARTS = 2
# A step costs about twice the base, which is measured around the scan alone; at 20 bases cutting
# costs about a tenth.
MIN_PIECE_IN_BASES = 20.0
MAX_SHARED_BYTES = 8 << 20  # of the clusters that several searches read in turn
NO_CLUSTER = -1


@dataclass(slots=True, eq=False)
class _Running:
    """One search and the scan it is in."""

    search: Search
    turn: int
    scan: ClusterScan
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class _Waiting:
    search: Search
    turn: int


class SteppedSearches:
    """Searches that advance in steps on an index with clusters.

    Used on one thread; the index may change.

    Args:
        index: the index to search; trained before the first search is added.
        clock: measures the steps.
        cost_of: returns the learned cost of pieces for a number of threads, with or without a
            filter, by codes or not.
        codes_of: returns the codes of a view, if there are any.
    """

    def __init__(
        self,
        index: DocumentIndex,
        clock: Clock,
        cost_of: Callable[[int, bool, bool], ScanCost],
        codes_of: Callable[[IndexView], CodedVectors | None],
    ) -> None:
        self._index = index
        self._clock = clock
        self._cost_of = cost_of
        self._codes_of = codes_of
        # Oldest first; every waiting search is younger than every running one.
        self._running: dict[WorkId, _Running] = {}
        self._waiting: dict[WorkId, _Waiting] = {}
        self._scan_s = 0.0  # seconds of the present piece spent in FAISS

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting)

    @property
    def oldest_turn(self) -> int | None:
        """Return the turn in which the oldest search was added; None if there is none."""
        oldest = next(iter(self._running.values()), None) or next(
            iter(self._waiting.values()), None
        )
        return None if oldest is None else oldest.turn

    def add(self, searches: Iterable[Search], turn: int) -> None:
        """Take searches behind those that are there; ``turn`` never falls."""
        for search in searches:
            # The caller may reuse the query's array before the last step.
            own = replace(search, vector=search.vector.copy())
            self._waiting[search.id] = _Waiting(own, turn)

    def cancel(self, ids: Iterable[WorkId]) -> None:
        """Forget searches; unknown ids are ignored."""
        for work in ids:
            self._running.pop(work, None)
            self._waiting.pop(work, None)

    def clear(self) -> None:
        """Forget all searches."""
        self._running.clear()
        self._waiting.clear()

    def advance(self, time_s: float | None, threads: int) -> list[EngineOutput]:
        """Read for ``time_s`` seconds, or until a search ends; return the outputs.

        At least one piece is read, and a piece is at least one cluster for all that want it.
        """
        end = None if time_s is None else self._clock.now() + time_s
        outputs: list[EngineOutput] = []
        is_first = has_read = True
        while len(self) and has_read:
            cost = self._cost_of(threads, self._has_filter(), self._has_codes())
            left_s = None if end is None else end - self._clock.now()
            least_s = MIN_PIECE_IN_BASES * cost.base_s
            if not is_first and (bool(outputs) if left_s is None else left_s <= least_s / 2):
                break
            limits = PieceLimits(
                least_work=cost.vectors_in(least_s),
                most_work=np.inf if left_s is None else cost.vectors_in(left_s),
                most_read=self._most_read(),
                is_needed=is_first,
            )
            ended, has_read = self._piece(cost, limits)
            outputs += ended
            is_first = False
        return outputs

    def _has_filter(self) -> bool:
        held = (*self._running.values(), *self._waiting.values())
        return any(member.search.query.where for member in held)

    def _has_codes(self) -> bool:
        with self._index.reading():
            return self._codes_of(self._index.view()) is not None

    def _most_read(self) -> float:
        return np.inf if len(self) < 2 else MAX_SHARED_BYTES / (4 * self._index.spec.dimension)

    def _piece(self, cost: ScanCost, limits: PieceLimits) -> tuple[list[EngineOutput], bool]:
        """Read one piece; return outputs, and False if no cluster fitted into the limits."""
        has_read = False
        with self._index.reading():
            view = self._index.view()
            outputs = self._begin(view)
            oldest = next(iter(self._running.values()), None)
            is_urgent = oldest is not None and oldest.restarts >= MAX_RESTARTS
            if is_urgent:
                limits = replace(limits, is_needed=True)
            while oldest is not None and (failed := self._read(cost, limits)) is not None:
                has_read = True
                outputs += [*failed, *self._end(view)]
                if not is_urgent or oldest.search.id not in self._running:
                    break
        return outputs, has_read

    def _begin(self, view: IndexView) -> list[EngineOutput]:
        """Begin waiting searches, and restart those whose index has changed."""
        outputs: list[EngineOutput] = []
        for running in list(self._running.values()):
            if not running.scan.is_of(view):
                outputs += self._place(view, running.search, running.turn, running.restarts + 1)
        waiting, self._waiting = self._waiting, {}
        for search in waiting.values():
            outputs += self._place(view, search.search, search.turn, 0)
        return outputs

    def _place(
        self, view: IndexView, search: Search, turn: int, restarts: int
    ) -> list[EngineOutput]:
        try:
            filter = self._filter(view, search)
            limit = limit_of(search.query.k, filter.size)
            if not limit:
                self._running.pop(search.id, None)
                return [EngineOutput(search.id, "final", value=())]
            codes = self._codes_of(view)
            scan = ClusterScan(view, search.vector, search.query.nprobe, limit, filter, codes)
        except Exception as error:
            return [self._fail(search.id, error)]
        # A known id keeps its place.
        self._running[search.id] = _Running(search, turn, scan, restarts)
        return []

    def _filter(self, view: IndexView, search: Search) -> ScanFilter:
        """Return the filter of a search, shared with a running search that has an equal one."""
        condition = search.condition()
        for running in self._running.values():
            if running.scan.filter.condition == condition and running.scan.is_of(view):
                return running.scan.filter
        return ScanFilter.of(view, condition, search.query.where)

    def _read(self, cost: ScanCost, limits: PieceLimits) -> list[EngineOutput] | None:
        """Read the next clusters; return the failed searches' outputs, None if no cluster fits."""
        started = self._clock.now()
        running = list(self._running.values())
        wanted = np.asarray([member.scan.wanted for member in running])
        sizes, demand = running[0].scan.vectors.cluster_sizes(), np.count_nonzero(wanted, axis=0)
        clusters = choose_clusters(
            (member.scan.rest() for member in running), sizes, demand, limits
        )
        if not len(clusters):
            return None
        failed: list[EngineOutput] = []
        wanted_now = wanted[:, clusters]
        self._scan_s = 0.0
        for rows in _groups(running, wanted_now):
            failed += self._scan([running[row] for row in rows], clusters, wanted_now[rows])
        base_s = self._clock.now() - started - self._scan_s
        cost.observe(int(sizes[clusters] @ demand[clusters]), self._scan_s, base_s)
        return failed

    def _scan(
        self, members: Sequence[_Running], clusters: Labels, wanted: npt.NDArray[np.bool_]
    ) -> list[EngineOutput]:
        """Read clusters for searches of one group; if that raises, for each of them alone."""
        scan = members[0].scan
        try:
            queries = np.stack([member.search.vector for member in members])
            assigned = np.where(wanted, clusters, NO_CLUSTER)
            started = self._clock.now()
            found = scan.lists.scan(queries, scan.width, assigned, scan.filter.selector)
            self._scan_s += self._clock.now() - started
        except Exception as error:
            if len(members) == 1:
                return [self._fail(members[0].search.id, error)]
            alone = [
                self._scan([member], clusters, wanted[row : row + 1])
                for row, member in enumerate(members)
            ]
            return [output for outputs in alone for output in outputs]
        take([member.scan for member in members], clusters, *found)
        return []

    def _end(self, view: IndexView) -> list[EngineOutput]:
        """End the searches that have read everything, or let them go on if that was too little."""
        done: dict[tuple[int, bool], list[_Running]] = {}
        for member in self._running.values():
            if member.scan.is_done:
                done.setdefault((member.scan.width, member.scan.codes is None), []).append(member)
        return [output for members in done.values() for output in self._settle(view, members)]

    def _settle(self, view: IndexView, members: list[_Running]) -> list[EngineOutput]:
        try:
            settled = _settled(view, members)
        except Exception as error:
            if len(members) == 1:
                return [self._fail(members[0].search.id, error)]
            return [output for member in members for output in self._settle(view, [member])]
        outputs: list[EngineOutput] = []
        for member, hits in zip(members, settled, strict=True):
            if hits is None:
                member.scan.widen()
            elif len(hits.labels) < member.scan.limit and member.scan.visit_all():
                continue
            else:
                del self._running[member.search.id]
                value = tuple(view.scored(hits))
                outputs.append(EngineOutput(member.search.id, "final", value=value))
        return outputs

    def _fail(self, work: WorkId, error: Exception) -> EngineOutput:
        self._running.pop(work, None)
        return EngineOutput(work, "error", error=error)


def _groups(running: list[_Running], wanted: npt.NDArray[np.bool_]) -> list[list[int]]:
    """Return the rows that want a cluster, grouped by the call that can serve them."""
    groups: dict[tuple[int, bool, object], list[int]] = {}
    for row in np.flatnonzero(wanted.any(axis=1)).tolist():
        scan = running[row].scan
        key = (scan.width, scan.codes is None, scan.filter.condition)
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def _settled(view: IndexView, members: list[_Running]) -> list[Hits | None]:
    scans = [member.scan for member in members]
    queries = np.stack([member.search.vector for member in members])
    limits = np.asarray([scan.limit for scan in scans], dtype=np.int64)
    return prove_nearest(view.vectors, queries, limits, candidates(scans, queries))

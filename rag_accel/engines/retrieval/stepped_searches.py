"""The part that engines over clusters share: searches that are read piece by piece.

A piece is a sub-stage of HedraRAG (section 4.2): between two of them a step may end, so that short
searches join long ones. The expected time of a piece follows from the numbers in its clusters, at a
learned cost for each number (Equation 1, by cluster instead of by query).

Every waiting search getting a slice of each step was measured to be worse than one call: equal
searches then all end late. So the search with the least work left is read first, which for equal
ones is the oldest. And among equal ones none gains by a border: a step reads a search to its end,
beyond its time, where that is no longer than searches usually are.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

from rag_accel.engine_api import EngineOutput, EngineProfile, Provisional, StepBudget, WorkId
from rag_accel.engine_api.line_fit import LineFit
from rag_accel.engines.retrieval.pending_requests import PendingRequests
from rag_accel.engines.retrieval.search_request import Search, grouped
from rag_accel.engines.retrieval.vectors.cluster_scans import LEAST_SHARE, ClusterScan, ScanPiece

#: seconds from which on a search may be read in pieces: below, borders cost more than they bring
LEAST_CUT_S = 0.004
#: seconds from which on a search reports provisional results, and between two of them
LEAST_REPORTED_S, LEAST_BETWEEN_S = 0.040, 0.008
#: the shares of its vectors after which it does
REPORTED_AT = (0.06, 0.1, 0.15, 0.2, 0.27, 0.35, 0.45, 0.6, 0.8)
#: seconds after which a search is read before those with less work
PATIENCE_S = 0.5
#: seconds of the shortest piece
LEAST_PIECE_S = 0.001
#: binary digits that a search has more than usual to be long; others are not cut
LONGER_DIGITS = 1.0
#: seconds beyond its time that a step may take to read such a search to its end
MOST_BEYOND_S = 0.1
#: results of a search from which on merging pieces would take long
MOST_RESULTS = 1_000
#: names of counts
COUNTS: tuple[str, ...] = ("searches_in_pieces", "pieces_read", "provisional_results")
#: of sizes of reads, relative to their mean and squared: with less they show no cost of a number
_VARIATION = 0.05
#: of a step's time, so much must be left for further pieces: each call has costs of its own
_LEFT_SHARE = 0.4
#: seconds to read a number before any is measured: 27 GB/s
_FIRST_GUESS_S = 1.5e-10


class ReadTimes:
    """The learned time to read vectors, for each number of threads."""

    def __init__(self) -> None:
        self._fits: dict[int, LineFit] = {}

    def expected_s(self, numbers: float, threads: int) -> float:
        """Return the expected seconds to read so many numbers."""
        return numbers * self._number_s(threads)

    def within(self, seconds: float, threads: int) -> float:
        """Return how many numbers are read in so many seconds, which may be infinite."""
        return seconds / self._number_s(threads)

    def note(self, numbers: int, threads: int, seconds: float) -> None:
        """Learn from a read. Few numbers teach nothing: other costs of a call prevail."""
        if numbers >= LEAST_SHARE:
            self._fits.setdefault(threads, LineFit(7 / 8)).add(numbers, seconds)

    def _number_s(self, threads: int) -> float:
        fit = self._fits.get(threads)
        if fit is None:
            return _FIRST_GUESS_S
        line = fit.line(_VARIATION)  # the costs of a call are no reason for shorter pieces
        return line.per_item_s if line and line.per_item_s > 0 else fit.mean_s / fit.mean_size


@dataclass(slots=True, eq=False)
class HeldSearch:
    """A search that is read in pieces.

    Args:
        search: it.
        scan: its clusters and the nearest so far.
        state: of the index when it began, as the engine likes it.
        begun_s: when it began.
        borders: the positions of its scan at which it still has to report.
        reported: the documents of its last report.
        reported_from: the share of its work that was done when they were first reported.
    """

    search: Search
    scan: ClusterScan
    state: Any
    begun_s: float
    borders: list[int]
    reported: tuple[str, ...] | None = None
    reported_from: float = 0.0


class HeldPiece(NamedTuple):
    """The next piece of a held search."""

    held: HeldSearch
    piece: ScanPiece


def in_order(waiting: Iterable[HeldSearch], now: float) -> list[HeldSearch]:
    """Return searches as they are to be read: the impatient ones by age, others by work left."""

    def key(held: HeldSearch) -> tuple[bool, float]:
        is_patient = now - held.begun_s < PATIENCE_S
        return is_patient, held.scan.num_left if is_patient else held.begun_s

    return sorted(waiting, key=key)


class SteppedSearches(PendingRequests):
    """A base of engines that read searches in pieces. Used by one thread.

    Args:
        profile: of the engine; constant.
    """

    def __init__(self, profile: EngineProfile) -> None:
        super().__init__(profile)
        self._held: dict[WorkId, HeldSearch] = {}
        self._times = ReadTimes()
        #: the mean of the binary digits of searches' numbers; 0 before the first
        self._digits = 0.0
        self._counts = dict.fromkeys(COUNTS, 0)

    @property
    def counts(self) -> Mapping[str, int]:
        return self._counts

    def describe_parts(self) -> tuple[str, ...]:
        searches, pieces, _ = self._counts.values()
        made = f"{searches} searches, {pieces} pieces"
        return (f"reads long searches in pieces while others wait: {made}",) if searches else ()

    def cancel(self, ids: Sequence[WorkId]) -> None:
        super().cancel(ids)
        for work in ids:
            self._held.pop(work, None)

    def close(self) -> None:
        """Forget all work; the index stays the caller's."""
        super().close()
        self._held.clear()

    def _numbers(self, search: Search, in_pieces: bool) -> int:
        """Return about how many numbers a search reads, in pieces or in one call.

        0 if it is not to be read in pieces, or nothing is known of the call.
        """
        raise NotImplementedError

    def _whole(self, group: list[Search], threads: int) -> list[EngineOutput]:
        """End searches with equal ``group_key``; a search that raises fails alone."""
        raise NotImplementedError

    def _again(self, searches: list[Search], threads: int) -> list[EngineOutput]:
        """End searches that their pieces do not settle."""
        return self._whole_groups(searches, threads)

    def _begin(self, group: list[Search]) -> list[tuple[ClusterScan, Any]]:
        """Return a scan for each search, and the state of the index."""
        raise NotImplementedError

    def _read(self, pieces: Sequence[HeldPiece], threads: int) -> list[HeldSearch]:
        """Read pieces together; return the searches whose index has changed instead.

        Where it raises, no piece counts as read.
        """
        raise NotImplementedError

    def _value(self, held: HeldSearch) -> tuple[Any, ...] | None:
        """Return the documents of a search, or those so far; None if pieces do not settle it."""
        raise NotImplementedError

    def _search(
        self, searches: list[Search], budget: StepBudget, threads: int
    ) -> list[EngineOutput]:
        """End searches, or begin them and read those that were begun, within a budget."""
        started = time.perf_counter()
        whole = self._begin_long(searches, budget.time_s, threads, started)
        outputs, has_read = self._whole_groups(whole, threads), False
        while self._held:
            now = time.perf_counter()
            left_s = inf if budget.time_s is None else budget.time_s - (now - started)
            least_s = LEAST_PIECE_S
            if has_read and budget.time_s is not None:
                least_s = max(least_s, _LEFT_SHARE * budget.time_s)
            if left_s < least_s:
                is_due = any(now - held.begun_s >= PATIENCE_S for held in self._held.values())
                if has_read or (whole and not is_due):
                    break
            if not has_read:
                left_s = max(left_s, self._usual_s(threads, now))
            pieces, has_border = self._choose(max(left_s, LEAST_PIECE_S), threads, now)
            outputs += self._advance(pieces, threads)
            has_read = True
            if has_border:
                break
        return outputs

    def _begin_long(
        self, searches: list[Search], time_s: float | None, threads: int, now: float
    ) -> list[Search]:
        """Hold the searches that are to be read in pieces; return the others."""
        numbers = [self._numbers(search, True) for search in searches]
        for number in numbers:
            self._digits += (number.bit_length() - self._digits) / (8 if self._digits else 1)
        expected_s = [self._times.expected_s(number, threads) for number in numbers]
        total_s, reports = sum(expected_s), False
        for held in self._held.values():
            left = held.scan.num_left * len(held.search.vector)
            total_s += self._times.expected_s(left, threads)
            reports = reports or bool(held.borders)
        pairs = list(zip(searches, expected_s, strict=True))
        reports = reports or any(s.provisional and s_s >= LEAST_REPORTED_S for s, s_s in pairs)
        if not reports and (time_s is None or total_s <= time_s):
            return searches
        long = [search for search, search_s in pairs if search_s >= LEAST_CUT_S]
        for group in grouped(long, Search.group_key):
            try:
                begun = self._begin(group)
            except Exception:
                continue  # a whole call says which of them fails, and why
            for search, (scan, state) in zip(group, begun, strict=True):
                borders = self._borders(scan, state, threads) if search.provisional else []
                self._held[search.id] = HeldSearch(search, scan, state, now, borders)
                self._counts["searches_in_pieces"] += 1
        return [search for search in searches if search.id not in self._held]

    def _usual_s(self, threads: int, now: float) -> float:
        """Return the time to end the next search; 0 if it is longer than they usually are."""
        held = next(iter(in_order(self._held.values(), now)))
        dimension = len(held.search.vector)
        if (held.scan.num_vectors * dimension).bit_length() >= self._digits + LONGER_DIGITS:
            return 0.0
        expected_s = self._times.expected_s(held.scan.num_left * dimension, threads)
        return min(expected_s, MOST_BEYOND_S)

    def _borders(self, scan: ClusterScan, state: Any, threads: int) -> list[int]:
        """Return the positions at which a search reports what it has found."""
        vector_s = self._times.expected_s(len(scan.query), threads)
        borders, before = list[int](), 0
        if vector_s * scan.num_vectors < LEAST_REPORTED_S:
            return borders
        for share in REPORTED_AT:
            border = scan.until(int(share * scan.num_vectors))
            parts = (scan.vectors_in(before, border), scan.vectors_in(border, len(scan.clusters)))
            if vector_s * min(parts) >= LEAST_BETWEEN_S:
                borders.append(border)
                before = border
        return borders

    def _choose(self, left_s: float, threads: int, now: float) -> tuple[list[HeldPiece], bool]:
        """Return the pieces that can be read in the time left, and whether the last one reports."""
        left, pieces = self._times.within(left_s, threads), list[HeldPiece]()
        for held in in_order(self._held.values(), now):
            scan, dimension = held.scan, len(held.search.vector)
            while held.borders and held.borders[0] < scan.position:
                del held.borders[0]
            end = len(scan.clusters)
            if scan.num_left * dimension > left:
                end = scan.until(int(left / dimension))
            # Others would wait longer for what one search may gain.
            is_alone = len(self._held) == 1
            has_border = is_alone and bool(held.borders) and end >= held.borders[0]
            if has_border:
                end = held.borders[0]
            piece = ScanPiece(scan, scan.position, end)
            pieces.append(HeldPiece(held, piece))
            left -= piece.num_vectors * dimension
            if has_border:
                return pieces, True
            if left <= 0:
                break
        return pieces, False

    def _advance(self, pieces: Sequence[HeldPiece], threads: int) -> list[EngineOutput]:
        """Read pieces; return what they end or have to report."""
        started = time.perf_counter()
        try:
            changed = self._read(pieces, threads)
        except Exception as error:
            if len(pieces) == 1:
                return [self._failed(pieces[0].held, error)]
            return [output for piece in pieces for output in self._advance([piece], threads)]
        if not changed:
            numbers = sum(one.piece.num_vectors * len(one.held.search.vector) for one in pieces)
            self._times.note(numbers, threads, time.perf_counter() - started)
        read = [one for one in pieces if one.held not in changed]
        self._counts["pieces_read"] += sum(one.piece.end > one.piece.start for one in read)
        outputs, unsettled = list[EngineOutput](), list(changed)
        for held, _ in read:
            is_border = bool(held.borders) and held.scan.position == held.borders[0]
            if not (held.scan.is_over or is_border):
                continue
            try:
                value = self._value(held)
            except Exception as error:
                outputs.append(self._failed(held, error))
                continue
            if value is None:
                unsettled.append(held)
            elif held.scan.is_over:
                del self._held[held.search.id]
                outputs.append(EngineOutput(held.search.id, "final", value=value))
            else:
                outputs.append(self._report(held, value, threads))
        for held in unsettled:
            del self._held[held.search.id]
        return outputs + self._again([held.search for held in unsettled], threads)

    def _failed(self, held: HeldSearch, error: Exception) -> EngineOutput:
        del self._held[held.search.id]
        return EngineOutput(held.search.id, "error", error=error)

    def _report(self, held: HeldSearch, value: tuple[Any, ...], threads: int) -> EngineOutput:
        """Return what a search has found when it is at a border."""
        del held.borders[0]
        self._counts["provisional_results"] += 1
        scan = held.scan
        documents = tuple(hit.document.id for hit in value)
        done = scan.num_read / max(1, scan.num_vectors)
        if documents != held.reported:
            held.reported, held.reported_from = documents, done
        left_s = self._times.expected_s(scan.num_left * len(held.search.vector), threads)
        found = Provisional(value, done, done - held.reported_from, left_s)
        return EngineOutput(held.search.id, "progress", value=found)

    def _whole_groups(self, searches: list[Search], threads: int) -> list[EngineOutput]:
        """End searches in calls that they share, and learn from the time of each."""
        outputs = list[EngineOutput]()
        for group in grouped(searches, Search.group_key) if searches else ():
            started = time.perf_counter()
            outputs += self._whole(group, threads)
            numbers = sum(self._numbers(search, False) for search in group)
            self._times.note(numbers, threads, time.perf_counter() - started)
        return outputs

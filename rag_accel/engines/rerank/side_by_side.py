"""Calls of a scorer that compute at the same time, on one thread each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from rag_accel.engine_api import WorkId
from rag_accel.engines.helper_threads import HelperCall, HelperThreads
from rag_accel.engines.pending import PendingWork, Slot

Pair = tuple[str, str]
ScoreSlots = Callable[[list[Slot[Pair]]], list[float]]

#: How often a step looks for newcomers, in seconds.
_LOOK_S = 0.001


class ScoringCall:
    """One call under way, and the slots that it scores.

    Args:
        slots: what is scored.
        score: scores slots, one number for each.
        helpers: the threads that compute it.
    """

    def __init__(self, slots: list[Slot[Pair]], score: ScoreSlots, helpers: HelperThreads) -> None:
        self.slots = slots
        self._score = score
        self._call: HelperCall | None = helpers.start(partial(score, slots))

    @property
    def is_done(self) -> bool:
        """Tell whether ``take`` need not wait."""
        return self._call is None or self._call.is_done

    def wait(self, timeout_s: float) -> None:
        """Return when a call of these threads has ended, at the latest after so many seconds."""
        if self._call is not None:
            self._call.wait(timeout_s)

    def take(self, slots: list[Slot[Pair]]) -> list[float]:
        """Return the scores of some of its slots; after a failure they are computed again."""
        call, self._call = self._call, None
        if call is None:
            return self._score(slots)
        wanted = set(slots)
        pairs = zip(self.slots, call(), strict=True)
        return [score for slot, score in pairs if slot in wanted]


class SideBySide:
    """The calls of a scorer that are under way.

    Used on one thread but ``interrupt``.

    Args:
        pending: whose slots they score.
        cut: takes slots and cuts them into about so many calls.
        score: scores slots, one number for each.
        max_threads: most threads of a step, and so most calls at a time.
    """

    def __init__(
        self,
        pending: PendingWork[Pair, float],
        cut: Callable[[int], Sequence[list[Slot[Pair]]]],
        score: ScoreSlots,
        max_threads: int,
    ) -> None:
        self._pending = pending
        self._cut = cut
        self._score = score
        self._max_threads = max_threads
        self._helpers = HelperThreads()
        self._running: list[ScoringCall] = []
        self._is_interrupted = False

    def __len__(self) -> int:
        """Return the number of started calls that were not taken."""
        return len(self._running)

    def ended(self, threads: int) -> Iterator[ScoringCall]:
        """Start a call for each thread, at most one a request, and yield those that have ended.

        That is one call, or none where newcomers can start meanwhile. On a part of the threads it
        is all calls: what went on would compute on cores that others may have been granted.
        """
        self._fill(threads)
        if threads >= self._max_threads:
            call = self._take_ended(threads)
            if call is not None:
                yield call
            return
        while self._running:
            call = self._take_ended(threads)
            if call is not None:
                yield call

    def interrupt(self) -> None:
        """Let ``ended`` return for newcomers; from any thread."""
        self._is_interrupted = True

    def close(self) -> None:
        """Wait until all calls have ended and forget them."""
        self._helpers.join()
        self._running.clear()

    def _fill(self, threads: int) -> None:
        self._running = [
            call for call in self._running if not call.is_done or self._is_wanted(call)
        ]
        free = self._most(threads) - len(self._running)
        if free <= 0:
            return
        calls = self._cut(free)
        for slots in reversed(calls[free:]):  # newcomers take part in what has not begun
            self._pending.put_back(slots)
        self._running += [ScoringCall(slots, self._score, self._helpers) for slots in calls[:free]]

    def _take_ended(self, threads: int) -> ScoringCall | None:
        while self._running:
            for call in self._running:
                if call.is_done:
                    self._running.remove(call)
                    return call
            has_room = len(self._running) < threads >= self._max_threads
            if self._is_interrupted and has_room:
                break
            self._running[0].wait(_LOOK_S)
        self._is_interrupted = False
        return None

    def _most(self, threads: int) -> int:
        # What runs for work that was cancelled meanwhile keeps its core until it ends.
        forgotten = sum(not self._is_wanted(call) for call in self._running)
        return min(threads, len(self._pending) + forgotten)

    def _is_wanted(self, call: ScoringCall) -> bool:
        return any(map(self._pending.is_alive, call.slots))


def parts_by_work(slots: Iterable[Slot[Pair]], count: int) -> list[list[Slot[Pair]]]:
    """Return slots in up to ``count`` parts of about equal cost, those of one work together."""
    work_items: dict[WorkId, list[Slot[Pair]]] = {}
    for slot in slots:
        work_items.setdefault(slot.work, []).append(slot)
    costs = {work: sum(slot.cost for slot in own) for work, own in work_items.items()}
    parts = [list[Slot[Pair]]() for _ in range(min(count, len(work_items)))]
    sums = [0] * len(parts)
    for work in sorted(work_items, key=lambda work: -costs[work]):
        least = sums.index(min(sums))
        sums[least] += costs[work]
        parts[least] += work_items[work]
    return parts

"""Times of searches of stores on servers, by which those that gain from it share calls.

One call of many searches spares a server's answers and a client's work. But where a search itself
takes long, a server makes many calls on as many cores, and the searches of one call on one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from rag_accel.system.locks import RenewedLock

#: least searches by which a way is measured
EPOCH = 16
#: the same by how many run at once: those of a call end together
ROUNDS = 4
#: epochs until the slower way is measured again
TRY_OTHER = 64
#: most of the time of shared searches that others may take, to be preferred: they load the server
WORTH_SHARE = 0.9
#: by what the number of searches at once changes until both ways are measured again
OTHER_LOAD = 2.0
#: most kinds of searches of which times are kept; the LRU goes
_MAX_KINDS = 256


class _Cost(NamedTuple):
    seconds: float
    running: float


@dataclass(slots=True, eq=False)
class _Epoch:
    """Searches that are made the same way: sharing calls, or each by itself.

    Of the first ``skipped`` to end, some began the other way. The time of a search is by Little's
    law: those that are the last to end are missed in no mean of times.
    """

    shares: bool
    skipped: int = 0
    count: int = 0
    seconds: float = 0.0
    running: int = 0

    @property
    def is_over(self) -> bool:
        return self.count >= self.skipped + max(EPOCH, ROUNDS * self.skipped)

    def note(self, running: int, seconds: float) -> None:
        self.count += 1
        if self.count > self.skipped:
            self.seconds += seconds
            self.running += running

    def cost(self) -> _Cost:
        count = self.count - self.skipped
        running = self.running / count
        return _Cost(running * self.seconds / count, running)


@dataclass(slots=True, eq=False)
class _Learned:
    epoch: _Epoch = field(default_factory=lambda: _Epoch(True))
    costs: dict[bool, _Cost] = field(default_factory=dict[bool, _Cost])
    epochs: int = 0
    #: when a search last ended, or the first one began
    last: float = 0.0

    def note(self, running: int, now: float) -> None:
        self.epoch.note(running, now - self.last)
        self.last = now
        if self.epoch.is_over:
            self._begin_next(self.epoch.shares, self.epoch.cost())

    def _begin_next(self, ended: bool, cost: _Cost) -> None:
        self.epochs += 1
        before, self.costs[ended] = self.costs.get(ended, cost), cost
        if not 1 / OTHER_LOAD <= cost.running / before.running <= OTHER_LOAD:
            self.costs.pop(not ended, None)
        self.epoch = _Epoch(self._shares_next(ended), round(cost.running))

    def _shares_next(self, ended: bool) -> bool:
        if len(self.costs) < 2:
            return not ended
        shares = self.costs[False].seconds > WORTH_SHARE * self.costs[True].seconds
        return shares != (self.epochs % TRY_OTHER == 0)


class SharingGain:
    """The times of a client's searches that overlap, by kind. Used from any thread.

    All searches of a kind go the same way for an epoch, so that each way is measured by itself.
    """

    def __init__(self) -> None:
        self._lock = RenewedLock()
        self._learned: OrderedDict[Hashable, _Learned] = OrderedDict()

    def shares(self, kind: Hashable) -> bool:
        """Return whether a search is to share a call; those of one kind take about as long."""
        with self._lock.lock:
            return self._of(kind).epoch.shares

    def resume(self, kind: Hashable, now: float) -> None:
        """Count no time until now, when a search begins without another."""
        with self._lock.lock:
            self._of(kind).last = now

    def note(self, kind: Hashable, running: int, now: float) -> None:
        """Learn from a search that has ended, and began as the last of ``running``."""
        with self._lock.lock:
            self._of(kind).note(running, now)

    def _of(self, kind: Hashable) -> _Learned:
        learned = self._learned.setdefault(kind, _Learned())
        self._learned.move_to_end(kind)
        if len(self._learned) > _MAX_KINDS:
            self._learned.popitem(last=False)
        return learned

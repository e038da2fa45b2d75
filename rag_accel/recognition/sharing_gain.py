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
#: epochs until the slower way is measured again
TRY_OTHER = 128
#: most of the time of shared searches that others may take, to be preferred: they load the server
WORTH_SHARE = 0.9
#: by what the number of searches at once changes until both ways are measured again
OTHER_LOAD = 2.0
#: most kinds of searches of which times are kept; the LRU goes
_MAX_KINDS = 256


@dataclass(slots=True, eq=False)
class Epoch:
    """Searches that are made the same way: sharing calls, or each by itself.

    Args:
        shares: which of them.
        skipped: of its first searches, which ran with the last ones of the epoch before: those
            that go the other way find no queue, and are fast for that alone.
    """

    shares: bool
    skipped: int = 0
    count: int = 0
    seconds: float = 0.0
    running: int = 0

    @property
    def is_over(self) -> bool:
        """Tell whether enough searches were made: twice as many as run at the same time."""
        return self.count >= self.skipped + max(EPOCH, 2 * self.skipped)

    def note(self, seconds: float, running: int) -> None:
        """Count a search."""
        self.count += 1
        if self.count > self.skipped:
            self.seconds += seconds
            self.running += running


class _Cost(NamedTuple):
    seconds: float
    running: float


@dataclass(slots=True, eq=False)
class _Learned:
    epoch: Epoch = field(default_factory=lambda: Epoch(True))
    costs: dict[bool, _Cost] = field(default_factory=dict[bool, _Cost])
    epochs: int = 0

    def begin_next(self) -> None:
        ended, self.epochs = self.epoch, self.epochs + 1
        measured = ended.count - ended.skipped
        cost = _Cost(ended.seconds / measured, ended.running / measured)
        before, self.costs[ended.shares] = self.costs.get(ended.shares, cost), cost
        if not 1 / OTHER_LOAD <= cost.running / before.running <= OTHER_LOAD:
            self.costs.pop(not ended.shares, None)
        self.epoch = Epoch(self._shares_next(ended.shares), round(cost.running))

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

    def epoch(self, kind: Hashable) -> Epoch:
        """Return how a search is to be made; searches of one kind take about as long."""
        with self._lock.lock:
            learned = self._learned.setdefault(kind, _Learned())
            self._learned.move_to_end(kind)
            if len(self._learned) > _MAX_KINDS:
                self._learned.popitem(last=False)
            return learned.epoch

    def note(self, kind: Hashable, epoch: Epoch, seconds: float, running: int) -> None:
        """Learn from a search that was made as its epoch says, with ``running`` at that time."""
        with self._lock.lock:
            learned = self._learned.get(kind)
            if learned is None or learned.epoch is not epoch:
                return  # the next has begun: some were made the other way meanwhile
            epoch.note(seconds, running)
            if epoch.is_over:
                learned.begin_next()

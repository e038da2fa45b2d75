"""Times of searches of stores on servers, by which those that gain from it share calls.

One call of many searches spares a server's answers and a client's work. But where a search itself
takes long, a server makes many calls on as many cores, and the searches of one call on one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from rag_accel.system.locks import RenewedLock

#: searches that are made the same way before the other is thought of: of the first two epochs,
#: after which both ways were measured, and of all others
FIRST_EPOCH, EPOCH = 8, 32
#: epochs until the slower way is measured again
TRY_OTHER = 128
#: most of the time of shared searches that others may take, to be preferred: they load the server
WORTH_SHARE = 0.9
#: most kinds of searches and numbers of callers of which times are kept; the LRU goes
_MAX_KINDS = 256


@dataclass(slots=True, eq=False)
class Epoch:
    """A number of searches that are made the same way: sharing calls, or each by itself."""

    shares: bool
    count: int = 0
    cost: float = 0.0


@dataclass(slots=True, eq=False)
class _Learned:
    epoch: Epoch = field(default_factory=lambda: Epoch(True))
    costs: dict[bool, float] = field(default_factory=dict[bool, float])
    epochs: int = 0

    @property
    def is_over(self) -> bool:
        return self.epoch.count >= (FIRST_EPOCH if self.epochs < 2 else EPOCH)

    def next(self) -> Epoch:
        ended = self.epoch
        self.costs[ended.shares] = ended.cost / ended.count
        self.epochs += 1
        if len(self.costs) < 2:
            return Epoch(not ended.shares)
        shares = self.costs[False] > WORTH_SHARE * self.costs[True]
        return Epoch(shares != (self.epochs % TRY_OTHER == 0))


class SharingGain:
    """The times of a client's searches that overlap, by kind and number of callers.

    A search's cost is its time / the number of searches that run with it, so the inverse of a rate.
    Numbers within a power of two are one. Used from any thread.
    """

    def __init__(self) -> None:
        self._lock = RenewedLock()
        self._learned: OrderedDict[Hashable, _Learned] = OrderedDict()

    def epoch(self, kind: Hashable, running: int) -> Epoch:
        """Return how a search is to be made.

        Args:
            kind: of the search; searches of one kind take about as long.
            running: how many run with it.
        """
        key = (kind, running.bit_length())
        with self._lock.lock:
            learned = self._learned.setdefault(key, _Learned())
            self._learned.move_to_end(key)
            if len(self._learned) > _MAX_KINDS:
                self._learned.popitem(last=False)
            return learned.epoch

    def note(self, kind: Hashable, running: int, epoch: Epoch, seconds: float) -> None:
        """Learn from a search that was made as its epoch says."""
        with self._lock.lock:
            learned = self._learned.get((kind, running.bit_length()))
            if learned is None or learned.epoch is not epoch:
                return  # the next has begun: some were made the other way meanwhile
            epoch.count += 1
            epoch.cost += seconds / running
            if learned.is_over:
                learned.epoch = learned.next()

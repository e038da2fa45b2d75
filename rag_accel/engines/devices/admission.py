"""Admission of requests to a device group by the predicted end of their texts: pure.

A text waits for the step that runs and then for its own, which others still join until it begins.
If all that is queued would end within half of the limit, neither step takes longer than that half.
Where members' steps cannot be that long, the rest of the limit is left for the queue. What is
measured decides: where texts have ended late, less is admitted until they do not.

Refused requests are given retry times one after the other, at the rate at which members compute.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import ceil

from rag_accel.engine_api import WorkId
from rag_accel.engines.devices.pieces import PIECE_TOKENS
from rag_accel.engines.devices.placement import Placement

MOST_RETRY_S = 30.0
"""The latest slot of a refused request; those behind it share the slots of those before."""

OVERSUBSCRIBED = 1.5
"""Refused requests that retry for each that can be computed: some will have given up."""

LEAST_SHARE = 0.5
"""The least of what would be admitted by prediction alone, however late texts have ended."""

_FORGETTING = 1 / 16  # what each request counts for in the mean length of a text
_NUM_MEASURED = 32  # works that have ended between two looks at how late they were
_IN_TIME = 0.95  # of these, at least
_RISE = 1.1  # by how much more is admitted after a look at works that were in time
_MOST_WORKS = 8192  # whose arrivals are remembered


class Admission:
    """Admits requests while their texts are expected to end within the limit.

    Args:
        placement: the queue and the members.
        slo_s: by when a text should have ended, in seconds after it came.
    """

    def __init__(self, placement: Placement, slo_s: float) -> None:
        self._placement = placement
        self._slo_s = slo_s
        self._to_come = ExpectedTokens()
        self._text_tokens = 0.0
        self._lateness = Lateness(slo_s)
        self._slots = RetrySlots()

    def retry_after_s(
        self,
        request: str,
        live: AbstractSet[str],
        now: float,
        cores: int = 1,
        contended: bool = False,
    ) -> float:
        """Return 0 to admit a request, else the seconds after which it should ask again.

        A group that nothing waits for takes any request: trying again would not help it.

        Args:
            request: that asks.
            live: the admitted requests, perhaps this one among them.
            now: the time.
            cores: as for ``Placement.bind``.
            contended: as for ``Placement.bind``.
        """
        before = self._to_come.look(request, live)
        if not before and not self._placement.num_work_items:
            return 0.0
        mean = self._to_come.tokens_a_request
        end_s = self._placement.drained_s(ceil(before + mean), now, cores, contended)
        late_s = end_s - self._most_queued_s(contended) * self._lateness.share
        if late_s <= 0.0:
            return 0.0
        self._to_come.refused(request)
        rate = self._placement.tokens_a_second(self._text_tokens, contended)
        apart_s = mean / (OVERSUBSCRIBED * rate) if rate > 0.0 else self._slo_s
        return self._slots.next_s(now, max(late_s, self._placement.step_s()), apart_s)

    def brought(self, request: str, work: WorkId, costs: Sequence[int], now: float) -> None:
        """Note a work of a request that was admitted.

        One that is cut into pieces is not measured: its later pieces wait for those of others.

        Args:
            request: whose work it is.
            work: its id.
            costs: estimated tokens of its texts; none where all vectors are known.
            now: when it comes.
        """
        tokens = sum(costs)
        self._to_come.brought(request, tokens)
        if not costs:
            return
        new = tokens / len(costs)
        if self._text_tokens:
            new = self._text_tokens + _FORGETTING * (new - self._text_tokens)
        self._text_tokens = new
        if tokens <= PIECE_TOKENS or len(costs) == 1:
            self._lateness.came(work, now)

    def ended(self, work: WorkId, now: float) -> None:
        """Measure how long a work has taken."""
        self._lateness.ended(work, now)

    def forgotten(self, work_items: Iterable[WorkId]) -> None:
        """Learn nothing from works that were cancelled or ended with an error."""
        for work in work_items:
            self._lateness.forgotten(work)

    @property
    def num_measured(self) -> int:
        """Return the number of works whose end will be measured."""
        return self._lateness.num_came

    def _most_queued_s(self, contended: bool) -> float:
        """Return the seconds in which the queue should end."""
        full_s = self._placement.full_step_s(self._text_tokens, contended)
        return max(self._slo_s / 2, self._slo_s - full_s)


class Lateness:
    """The share of what prediction admits with which works have ended in time.

    Args:
        slo_s: by when a work should have ended, in seconds after it came.
    """

    def __init__(self, slo_s: float) -> None:
        self._slo_s = slo_s
        self._came: OrderedDict[WorkId, float] = OrderedDict()
        self._seconds: list[float] = []
        #: from ``LEAST_SHARE`` to 1
        self.share = 1.0

    def came(self, work: WorkId, now: float) -> None:
        """Note when a work came."""
        self._came[work] = now
        if len(self._came) > _MOST_WORKS:
            self._came.popitem(last=False)

    @property
    def num_came(self) -> int:
        """Return the number of works that have come and not ended."""
        return len(self._came)

    def forgotten(self, work: WorkId) -> None:
        """Forget when a work came; its id may live again."""
        self._came.pop(work, None)

    def ended(self, work: WorkId, now: float) -> None:
        """Learn from the end of a work whose arrival was noted."""
        at = self._came.pop(work, None)
        if at is None:
            return
        self._seconds.append(now - at)
        if len(self._seconds) >= _NUM_MEASURED:
            usual_s = sorted(self._seconds)[ceil(_IN_TIME * len(self._seconds)) - 1]
            self._seconds.clear()
            fits = self._slo_s / usual_s if usual_s > self._slo_s else _RISE
            self.share = min(1.0, max(LEAST_SHARE, self.share * fits))


class RetrySlots:
    """Times at which refused requests come again, each behind the one that was refused before."""

    def __init__(self) -> None:
        self._last = float("-inf")

    def next_s(self, now: float, least_s: float, apart_s: float) -> float:
        """Return the seconds until the next refused request should retry.

        Args:
            now: the time.
            least_s: the fewest seconds.
            apart_s: seconds from each slot to the next.
        """
        first = now + least_s
        slot = max(first, self._last + apart_s)
        if slot - now > max(MOST_RETRY_S, least_s):
            slot = first
        self._last = slot
        return slot - now


MOST_REQUESTS = 8192
"""Requests whose texts are remembered until they are seen to have ended."""

_MEMORY = 16  # requests over which the mean is taken, so that each later one counts a 16th


@dataclass(frozen=True, slots=True)
class Brought:
    """The tokens and works of a request, or their means."""

    tokens: float = 0.0
    work_items: float = 0.0


class ExpectedTokens:
    """The mean tokens and works of a request, and the difference of live requests to them.

    A request counts with all that it brought, also nothing, once it is seen to have ended; one
    that was refused teaches nothing. Until a first one has ended, those that live and have brought
    something stand for all. One that has brought as many works as others do lacks nothing, however
    short its texts.
    """

    __slots__ = ("_brought", "_mean", "_num_learned", "_refused")

    def __init__(self) -> None:
        self._mean = Brought()
        self._num_learned = 0
        self._brought: OrderedDict[str, Brought] = OrderedDict()
        self._refused: set[str] = set()

    @property
    def tokens_a_request(self) -> float:
        """Return the mean tokens of a request, 0 if none has brought any."""
        return self._mean_of_all().tokens

    def brought(self, request: str, tokens: int) -> None:
        """Note the texts of one work of a request that was admitted."""
        self._refused.discard(request)
        old = self._brought.get(request, Brought())
        self._brought[request] = Brought(old.tokens + tokens, old.work_items + 1)
        if len(self._brought) > MOST_REQUESTS:
            self._learn(self._brought.popitem(last=False)[1])

    def refused(self, request: str) -> None:
        """Note that a request brings nothing because it was refused."""
        self._refused.add(request)
        self._brought.pop(request, None)

    def look(self, asking: str, live: AbstractSet[str]) -> float:
        """Learn from requests that have ended; return the tokens that are to come of the others.

        Args:
            asking: a request that is still to be admitted; it counts for nothing yet.
            live: the requests that live, perhaps this one among them.
        """
        self._brought.pop(asking, None)
        live = live - {asking}
        for request in self._brought.keys() - live:
            self._learn(self._brought.pop(request))
        self._refused &= live
        for request in live - self._brought.keys() - self._refused:
            self._brought[request] = Brought()
        mean = self._mean_of_all()
        if mean.work_items <= 0.0:
            return 0.0
        live_works = (brought.work_items for brought in self._brought.values())
        lacking = sum(max(0.0, mean.work_items - work_items) for work_items in live_works)
        return lacking * mean.tokens / mean.work_items

    def _mean_of_all(self) -> Brought:
        if self._num_learned:
            return self._mean
        seen = [brought for brought in self._brought.values() if brought.tokens]
        if not seen:
            return Brought()
        return Brought(
            sum(brought.tokens for brought in seen) / len(seen),
            sum(brought.work_items for brought in seen) / len(seen),
        )

    def _learn(self, brought: Brought) -> None:
        self._num_learned = min(self._num_learned + 1, _MEMORY)
        mean, part = self._mean, 1 / self._num_learned
        self._mean = Brought(
            mean.tokens + (brought.tokens - mean.tokens) * part,
            mean.work_items + (brought.work_items - mean.work_items) * part,
        )

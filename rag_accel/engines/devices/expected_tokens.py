"""Predictions of the tokens that live requests will still send to an embedder."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

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

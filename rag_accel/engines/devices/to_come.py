"""How much text the requests that live will still bring to an embedder, learned from earlier."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set as AbstractSet

MOST_REQUESTS = 8192
"""Requests whose texts are remembered until they are seen to have ended."""

_MEMORY = 16  # requests over which the mean is taken, so that each later one counts a 16th


class TokensToCome:
    """The mean tokens of a request, and what live requests lack of it.

    A request counts with all that it brought, also nothing, once it is seen to have ended; one
    that was refused teaches nothing. Until a first one has ended, those that live and have brought
    something stand for all.
    """

    __slots__ = ("_brought", "_num_learned", "_refused", "_tokens")

    def __init__(self) -> None:
        self._tokens = 0.0
        self._num_learned = 0
        #: tokens by request
        self._brought: OrderedDict[str, int] = OrderedDict()
        self._refused: set[str] = set()

    @property
    def tokens_a_request(self) -> float:
        """Return the mean tokens of a request, 0 if none has brought any."""
        if self._num_learned:
            return self._tokens
        brought = [tokens for tokens in self._brought.values() if tokens]
        return sum(brought) / len(brought) if brought else 0.0

    def brought(self, request: str, tokens: int) -> None:
        """Note texts of a request that was admitted."""
        self._refused.discard(request)
        self._brought[request] = self._brought.get(request, 0) + tokens
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
            self._brought[request] = 0
        mean = self.tokens_a_request
        return sum(mean - tokens for tokens in self._brought.values() if tokens < mean)

    def _learn(self, tokens: int) -> None:
        self._num_learned = min(self._num_learned + 1, _MEMORY)
        self._tokens += (tokens - self._tokens) / self._num_learned

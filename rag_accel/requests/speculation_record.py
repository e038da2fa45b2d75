"""The record of a search and a generation: when a provisional result may be trusted.

A speculation (HedraRAG section 4.3) is worth its tokens only if the documents that it is made of
are likely to be final. How likely is learned from every search whose provisional results are seen,
speculated on or not: by how much of it was done, and since when its documents had not changed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

from rag_accel.scheduler.messages import Stakes

#: borders between shares of a search, done and unchanged
DONE_BORDERS = (0.04, 0.08, 0.12, 0.17, 0.23, 0.31, 0.4, 0.52, 0.7)
UNCHANGED_BORDERS = (0.02, 0.06, 0.12, 0.25)
#: searches of one kind that count; older ones count half
MOST_COUNTED = 256
#: the chance from which on a result is trusted: the lower one where nothing was wasted, the higher
#: one where as much was as may be
LEAST_CHANCE, SURE_CHANCE = 0.5, 0.95
#: of all prompts, and of all seconds of answers, so much may be wasted
MOST_PROMPTS, MOST_SECONDS = 0.15, 0.07
#: the first speculations, which may all be wrong before there is a share
FREE = 1.0
#: searches after which a record that has never trusted one asks for few provisional results only
UNTRUSTED_FROM = 48
ASKED_AGAIN = 16
#: a search that takes a smaller share of its request is not worth its pieces
LEAST_SHARE = 0.05
#: speculations that were right and yet not taken over, after which no further one begins
MOST_REFUSED = 8


class Seen(NamedTuple):
    """A provisional result: shares done and unchanged, seconds left, and its documents' ids."""

    done: float
    unchanged: float
    left_s: float
    ids: tuple[str, ...]


@dataclass(slots=True)
class Chances:
    """Learned probabilities that a provisional result is final; a third before any is seen.

    What was seen with the same share done, whatever had changed, counts as three searches.
    """

    _counts: dict[tuple[int, int], list[float]] = field(
        default_factory=dict[tuple[int, int], list[float]]
    )

    def of(self, seen: Seen) -> float:
        """Return the probability that these documents are final, in this order."""
        done, unchanged = _place(seen)
        final, total = self._counts.get((done, _ANY), (0.0, 0.0))
        before = (final + 1.0) / (total + 3.0)
        final, total = self._counts.get((done, unchanged), (0.0, 0.0))
        return (final + 3.0 * before) / (total + 3.0)

    def learn(self, seen: Iterable[Seen], final: Sequence[str]) -> None:
        """Learn from a search that has ended; each of its borders counts once."""
        for one in seen:
            done, unchanged = _place(one)
            for place in ((done, unchanged), (done, _ANY)):
                counts = self._counts.setdefault(place, [0.0, 0.0])
                if counts[1] >= MOST_COUNTED:
                    counts[0], counts[1] = counts[0] / 2, counts[1] / 2
                counts[0] += one.ids == tuple(final)
                counts[1] += 1.0

    @property
    def best(self) -> float:
        """Return the highest probability of all that was seen."""
        return max(((f + 1.0) / (n + 3.0) for f, n in self._counts.values()), default=1.0)


#: in place of a share that is unchanged
_ANY = -1


def _place(seen: Seen) -> tuple[int, int]:
    done = bisect_right(DONE_BORDERS, seen.done)
    return done, bisect_right(UNCHANGED_BORDERS, seen.unchanged)


Rule = Callable[["SpeculationRecord", Seen], "Stakes | None"]


def trusted(record: SpeculationRecord, seen: Seen) -> Stakes | None:
    """Return the stakes of a result that is likely enough to be final; None of any other."""
    chance, wasted = record.chances.of(seen), record.wasted
    is_enough = chance >= LEAST_CHANCE + (SURE_CHANCE - LEAST_CHANCE) * wasted
    return Stakes(chance, seen.left_s) if is_enough and wasted < 1.0 else None


class SpeculationRecord:
    """The experience of one graph with one search and the generation behind it.

    Thread-safe.
    """

    #: decides on which provisional results a generation begins
    rule: Rule = staticmethod(trusted)

    def __init__(self) -> None:
        self._lock = Lock()
        self.chances = Chances()
        self.searches = 0
        #: prompts that were computed in vain
        self.prompts = 0.0
        #: taken over never, although their documents were final, since the last that was
        self._refused = 0
        #: seconds of searches, of generations, and of generations in vain
        self._search_s = self._answer_s = self._wasted_s = 0.0
        self._asked = 0

    def asks(self) -> bool:
        """Tell whether a search is to tell its provisional results."""
        with self._lock:
            if self._refused >= MOST_REFUSED:
                return False
            whole_s = self._search_s + self._answer_s
            is_short = self._answer_s > 0 and self._search_s < LEAST_SHARE * whole_s
            is_untrusted = self.searches >= UNTRUSTED_FROM and self.chances.best < LEAST_CHANCE
            self._asked += 1
            return not (is_short or is_untrusted) or self._asked % ASKED_AGAIN == 0

    def stakes(self, seen: Seen) -> Stakes | None:
        """Return the stakes of a speculation on a provisional result; None if none is to begin."""
        with self._lock:
            return None if self._refused >= MOST_REFUSED else self.rule(self, seen)

    @property
    def wasted(self) -> float:
        """Return how much of what may be wasted is, of prompts or seconds: 1 is all of it."""
        prompts = self.prompts / (FREE + MOST_PROMPTS * self.searches)
        # As much as one generation may be wasted at first.
        most_s = MOST_SECONDS * self._answer_s + self._answer_s / max(1, self.searches)
        return max(prompts, self._wasted_s / most_s if most_s else 0.0)

    def search_ended(self, seen: Sequence[Seen], final: Sequence[str], took_s: float) -> None:
        """Learn from a search that has ended well."""
        with self._lock:
            self.searches += 1
            self._search_s += took_s
            self.chances.learn(seen, final)

    def answer_ended(self, took_s: float) -> None:
        """Learn how long a generation takes."""
        with self._lock:
            self._answer_s += took_s

    def taken_over(self) -> None:
        """Count a speculation that has saved its request time."""
        with self._lock:
            self._refused = 0

    def dropped(self, wasted_s: float, prompt: float, was_right: bool) -> bool:
        """Count a speculation that was not taken over, although its documents may be final.

        Return whether that has turned speculation off: it never leads to anything here.

        Args:
            wasted_s: since it began.
            prompt: share of its prompt with which the next one does not begin.
            was_right: whether its documents were final.
        """
        with self._lock:
            self.prompts += prompt
            self._wasted_s += wasted_s
            self._refused += was_right
            return was_right and self._refused == MOST_REFUSED

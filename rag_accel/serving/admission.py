"""Admission of requests: a bound on those that run, a short queue, and honest times to return.

Pure: every method takes ``now`` in seconds, and nothing waits here. Over capacity a request is
refused with the time after which its turn comes, behind all that were told so before it. It is
known again by its key, the digest of what it asks: at its time it waits for a place however many
wait, about as long as the rounding of these times to whole seconds takes; before, it is told the
rest of its time. Newcomers get places that nobody waits for. A place whose request is abandoned,
cancelled while a thread still works for it, is held until that thread ends, which nobody can tell:
while there are no others, nobody waits.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from typing import Literal

from rag_accel.errors import BusyError

Verdict = Literal["run", "wait"]

QUEUE_S = 1.0
"""Most seconds of work that wait for a place while nobody was told to come back."""

GRACE_S = 10.0
"""How long a turn is kept after its time."""

EARLY_S = 0.25
"""How much sooner a request may come than it was told."""

LONGEST_S = 600.0
"""The longest that a client is told to stay away; beyond, no turn is kept."""

MOST_PROMISED = 65_536
"""Most turns that are kept."""

_ROUNDING_S = 1e-3
_FIRST_S = 1.0
#: weight of one more duration in their mean
_WEIGHT = 0.1


class RequestAdmission:
    """The requests that run, that wait for a place, and that were told when to return.

    Args:
        most: how many may run at once, from 1.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.running = 0
        #: of these, those that were cancelled while threads work for them
        self.abandoned = 0
        self.waiting = 0
        self.num_promised = 0
        #: the times of each key's turns, rising, and all of them with their keys
        self._turns: dict[Hashable, deque[float]] = {}
        self._order: deque[tuple[float, Hashable]] = deque()
        #: when the last place that is promised will be free, as far as is known
        self._booked_until = 0.0
        self._mean_s: float | None = None

    def arrive(self, now: float, key: Hashable) -> Verdict:
        """Take in a request, to run at once or to wait for its turn.

        Args:
            now: the time.
            key: what a request has in common with itself when it is repeated.

        Raises:
            BusyError: it has to come back; ``retry_after_s`` is a whole number from 1.
        """
        self._expire(now)
        turns = self._turns.get(key)
        if self.running < self.most and not self.waiting:
            self._take(key)
            self.running += 1
            return "run"
        is_expected = turns is not None and turns[0] <= now + EARLY_S
        is_short = not self.num_promised and (self.waiting + 1) * self._interval_s <= QUEUE_S
        if self.can_wait and (is_expected or is_short):
            self._take(key)
            self.waiting += 1
            return "wait"
        raise self.refuse(now, key)

    @property
    def can_wait(self) -> bool:
        """Return whether a place will be free in a time that durations tell."""
        return self.abandoned < self.most

    def refuse(self, now: float, key: Hashable) -> BusyError:
        """Return what a request is told that has to come back; its turn is kept."""
        turns = self._turns.get(key)
        return self._busy(self._book(now, key) if turns is None else turns[0] - now)

    def begin(self) -> None:
        """Turn one that waits into one that runs; there must be a place."""
        assert self.waiting > 0, "nobody waits"
        assert self.running < self.most, "no place is free"
        self.waiting -= 1
        self.running += 1

    def leave_queue(self) -> None:
        """Forget one that waits, because its client has left or its time is over."""
        assert self.waiting > 0, "nobody waits"
        self.waiting -= 1

    def abandon(self) -> None:
        """Note that one that runs was cancelled while threads work for it."""
        assert self.abandoned < self.running, "nothing else runs"
        self.abandoned += 1

    def end(self, duration_s: float | None, is_abandoned: bool = False) -> None:
        """Free a place; ``duration_s`` is None if it says nothing of other requests."""
        assert self.running > 0, "nothing runs"
        self.running -= 1
        self.abandoned -= is_abandoned
        if duration_s is not None:
            mean = self._mean_s
            self._mean_s = duration_s if mean is None else mean + _WEIGHT * (duration_s - mean)

    @property
    def _interval_s(self) -> float:
        """Return the seconds from one freed place to the next."""
        places = max(1, self.most - self.abandoned)
        return (_FIRST_S if self._mean_s is None else self._mean_s) / places

    def _book(self, now: float, key: Hashable) -> float:
        """Return in how many seconds the turn of a newcomer is, and keep it."""
        backlog = now + self.waiting * self._interval_s
        until = max(self._booked_until, backlog) + self._interval_s
        if until - now > LONGEST_S or self.num_promised >= MOST_PROMISED:
            return LONGEST_S
        self._booked_until = until
        due = now + max(1, math.ceil(until - now))
        if self._order:  # rounded from an earlier time, the one before may be a little later
            due = max(due, self._order[-1][0])
        self._turns.setdefault(key, deque()).append(due)
        self._order.append((due, key))
        self.num_promised += 1
        return due - now

    def _busy(self, after_s: float) -> BusyError:
        # Less than EARLY_S is what floats lose between a time and its distance from now.
        after_s = float(max(1, math.ceil(after_s - _ROUNDING_S)))
        found = f"{self.running} requests under way, {self.waiting} waiting"
        if self.abandoned:
            found += f", {self.abandoned} given up whose threads still run"
        return BusyError(
            "the server is busy",
            found=found,
            valid=f"at most {self.most} at once",
            hint=f"come back in {after_s:.0f} s",
            retry_after_s=after_s,
        )

    def _take(self, key: Hashable) -> None:
        """Use up the first turn of a key, if it has any."""
        turns = self._turns.get(key)
        if turns is not None:
            turns.popleft()
            self.num_promised -= 1
            if not turns:
                del self._turns[key]

    def _expire(self, now: float) -> None:
        while self._order and self._order[0][0] + GRACE_S < now:
            due, key = self._order.popleft()
            turns = self._turns.get(key)
            if turns is not None and turns[0] <= due:  # else it was taken
                self._take(key)

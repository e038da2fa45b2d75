"""Admission of requests: a bound on those that run, a short queue, and honest times to return.

Over capacity a request is refused with the time after which its turn comes, behind all that were
told so before it. It is known again by its key, the digest of what it asks: at its time it waits
for a place however many wait, about as long as the rounding of these times to whole seconds takes;
before, it is told the rest of its time. Newcomers get places that nobody waits for.

A place is held until the threads of its request have ended, also where the request itself was
cancelled before. Nobody can tell when that will be: while there are no other places, nobody waits.

With a share for each tenant, everyone is let in or refused by the load of its own tenant alone.
Those let in then wait, where the tenants together are more than the places, for a place of all.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager, suppress

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.errors import BusyError
from rag_accel.leaves.request_threads import RequestThreads, request_threads

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


class Places:
    """Places for requests on one event loop, given in the order in which tasks asked for them.

    Args:
        most: how many there are, from 1.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        #: places that are taken, and of these those of requests cancelled while threads work
        self.running = self.abandoned = 0
        #: tasks that wait, which none does while a place is free, each with its refusal
        self._queue: deque[tuple[asyncio.Future[None], Callable[[], BusyError]]] = deque()

    @property
    def waiting(self) -> int:
        """Return how many tasks wait for a place."""
        return len(self._queue)

    @property
    def can_wait(self) -> bool:
        """Tell whether a place will be free in a time that durations tell."""
        return self.abandoned < self.most

    async def acquire(self, refusal: Callable[[], BusyError]) -> None:
        """Take a place, or wait for one.

        Raises:
            BusyError: as ``refusal`` returns it, if abandoned requests hold all places.
        """
        if self.running < self.most:
            self.running += 1
            return
        if not self.can_wait:
            raise refusal()
        place = asyncio.get_running_loop().create_future()
        entry = (place, refusal)
        self._queue.append(entry)
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                with suppress(ValueError):  # passed over meanwhile
                    self._queue.remove(entry)
            elif place.exception() is None:  # cancelled in the moment in which it was given one
                self.release()
            raise

    def abandon(self) -> None:
        """Note that the request of a place was cancelled while threads work for it."""
        self.abandoned += 1
        while self._queue and not self.can_wait:
            place, refusal = self._queue.popleft()
            if not place.done():
                place.set_exception(refusal())

    def release(self, is_abandoned: bool = False) -> None:
        """Give a place to the first task that waits, or free it."""
        self.abandoned -= is_abandoned
        while self._queue:
            place, _ = self._queue.popleft()
            if not place.done():
                place.set_result(None)
                return
        self.running -= 1


class RequestAdmission:
    """The turns of requests that were told when to return; pure, with ``now`` in seconds.

    Args:
        places: those that requests are let in to, whose counts it reads.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self.num_promised = 0
        #: the times of each key's turns, rising, and all of them with their keys
        self._turns: dict[Hashable, deque[float]] = {}
        self._order: deque[tuple[float, Hashable]] = deque()
        #: when the last place that is promised will be free, as far as is known
        self._booked_until = 0.0
        self._mean_s: float | None = None

    def arrive(self, now: float, key: Hashable) -> None:
        """Let in a request, which then takes a place or waits for one.

        Args:
            now: the time.
            key: what a request has in common with itself when it is repeated.

        Raises:
            BusyError: it has to come back; ``retry_after_s`` is a whole number from 1.
        """
        self._expire(now)
        places, turns = self._places, self._turns.get(key)
        is_expected = turns is not None and turns[0] <= now + EARLY_S
        is_short = not self.num_promised and (places.waiting + 1) * self._interval_s <= QUEUE_S
        may_wait = places.can_wait and (is_expected or is_short)
        if places.running >= places.most and not may_wait:
            raise self.refuse(now, key)
        self._take(key)

    def refuse(self, now: float, key: Hashable) -> BusyError:
        """Return what a request is told that has to come back; its turn is kept."""
        places, turns = self._places, self._turns.get(key)
        after_s = self._book(now, key) if turns is None else turns[0] - now
        # Less than EARLY_S is what floats lose between a time and its distance from now.
        after_s = float(max(1, math.ceil(after_s - _ROUNDING_S)))
        found = f"{places.running} requests under way, {places.waiting} waiting"
        if places.abandoned:
            found += f", {places.abandoned} given up whose threads still run"
        return BusyError(
            "the server is busy",
            found=found,
            valid=f"at most {places.most} at once",
            hint=f"come back in {after_s:.0f} s",
            retry_after_s=after_s,
        )

    def note(self, duration_s: float) -> None:
        """Take in how long a request held its place."""
        mean = self._mean_s
        self._mean_s = duration_s if mean is None else mean + _WEIGHT * (duration_s - mean)

    @property
    def _interval_s(self) -> float:
        """Return the seconds from one freed place to the next."""
        places = max(1, self._places.most - self._places.abandoned)
        return (_FIRST_S if self._mean_s is None else self._mean_s) / places

    def _book(self, now: float, key: Hashable) -> float:
        """Return in how many seconds the turn of a newcomer is, and keep it."""
        backlog = now + self._places.waiting * self._interval_s
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


class RequestTurns:
    """Waiting and leaving for what ``RequestAdmission`` decides; of one event loop.

    Args:
        most: requests that may run at once.
        clock: measures their durations.
        shared: of this and other turns together; a request that was let in waits for one of these
            places, too, and that time is part of its duration.
    """

    def __init__(self, most: int, clock: Clock | None = None, shared: Places | None = None) -> None:
        self.places = Places(most)
        self._admission = RequestAdmission(self.places)
        self._clock = clock or MonotonicClock()
        self._shared, self._num_behind = shared, 0

    @property
    def waiting(self) -> int:
        """Return how many wait for a place."""
        return self.places.waiting + self._num_behind

    @asynccontextmanager
    async def turn(self, key: Hashable) -> AsyncIterator[None]:
        """Hold a place for the block, and until its threads have ended; wait where there is none.

        Args:
            key: what the request has in common with itself when it is repeated.

        Raises:
            BusyError: it has to come back later.
        """

        def refusal() -> BusyError:
            return self._admission.refuse(self._clock.now(), key)

        self._admission.arrive(self._clock.now(), key)
        await self.places.acquire(refusal)
        began, is_done, is_abandoned, held = self._clock.now(), False, False, [self.places]
        threads = request_threads.get() or RequestThreads()

        def free() -> None:
            # One that failed or left early says nothing of how long the others take.
            if is_done or is_abandoned:
                self._admission.note(self._clock.now() - began)
            for places in held:
                places.release(is_abandoned)

        try:
            if self._shared is not None:
                await self._acquire_shared(self._shared, refusal)
                held.append(self._shared)
            yield
            is_done = True
        except asyncio.CancelledError:
            is_abandoned = threads.running > 0 and held[-1] is (self._shared or self.places)
            raise
        finally:
            if is_abandoned:
                for places in held:
                    places.abandon()
            threads.when_ended(free)

    async def _acquire_shared(self, shared: Places, refusal: Callable[[], BusyError]) -> None:
        self._num_behind += 1
        try:
            await shared.acquire(refusal)
        finally:
            self._num_behind -= 1


class TenantTurns:
    """The turns of each tenant: the same ones for all, or with a share for each its own.

    Args:
        most: requests of all tenants that may run at once.
        share: of these, those of one tenant; None for any number.
        clock: measures durations.
    """

    def __init__(self, most: int, share: int | None = None, clock: Clock | None = None) -> None:
        self.most = most
        self._share, self._clock = share, clock
        self._shared = Places(most)
        self._common = RequestTurns(most, clock)
        self._own: dict[str, RequestTurns] = {}

    def of(self, namespace: str) -> RequestTurns:
        if self._share is None:
            return self._common
        if namespace not in self._own:
            most = min(self._share, self.most)
            self._own[namespace] = RequestTurns(most, self._clock, self._shared)
        return self._own[namespace]

    def forget(self, namespace: str) -> None:
        """Drop the turns of a tenant of which no request is under way."""
        self._own.pop(namespace, None)

"""Places for requests on one event loop, in the order in which they came.

A place is held until the threads of its request have come back, also where the request itself was
cancelled before. While all places are held by such threads nobody waits: a request is refused.

With a share for each tenant, everyone is let in or refused by the load of its own tenant alone.
Those let in then wait, where the tenants together are more than the places, for a place of all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager, suppress
from functools import partial

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.errors import BusyError
from rag_accel.leaves.request_threads import RequestThreads, request_threads
from rag_accel.serving.admission import RequestAdmission


class PlaceQueue:
    """Tasks that wait for a place: each is given one in its turn, is refused, or leaves."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[asyncio.Future[None], Callable[[], BusyError]]] = deque()

    async def wait(
        self,
        refusal: Callable[[], BusyError],
        give_back: Callable[[], None],
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait for a place.

        Args:
            refusal: returns what is raised if there will be none.
            give_back: called where the task is cancelled in the moment in which it is given one.
            leave: called where it is cancelled before.
        """
        place = asyncio.get_running_loop().create_future()
        entry = (place, refusal)
        self._waiting.append(entry)
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                with suppress(ValueError):  # passed over meanwhile
                    self._waiting.remove(entry)
                leave()
            elif place.exception() is None:
                give_back()
            raise

    def give(self) -> bool:
        """Give a place to the first; False if no task waits."""
        while self._waiting:
            place, _ = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return True
        return False

    def refuse_all(self) -> None:
        while self._waiting:
            place, refusal = self._waiting.popleft()
            if not place.done():
                place.set_exception(refusal())


class SharedPlaces:
    """Places of several tenants together.

    Args:
        most: how many there are.
    """

    def __init__(self, most: int) -> None:
        self._most = self._free = most
        self._num_abandoned = 0
        self._queue = PlaceQueue()

    async def acquire(self, refusal: Callable[[], BusyError]) -> None:
        """Wait for a place. Raises what ``refusal`` returns if abandoned requests hold them all."""
        if self._free:
            self._free -= 1
        elif self._num_abandoned >= self._most:
            raise refusal()
        else:
            await self._queue.wait(refusal, self.release)

    def abandon(self) -> None:
        """Note that the request of a place was cancelled while threads work for it."""
        self._num_abandoned += 1
        if self._num_abandoned >= self._most:
            self._queue.refuse_all()

    def release(self, is_abandoned: bool = False) -> None:
        self._num_abandoned -= is_abandoned
        self._free += not self._queue.give()


class RequestTurns:
    """Waiting and leaving for what ``RequestAdmission`` decides; of one event loop.

    Args:
        most: requests that may run at once.
        clock: measures their durations.
        places: of this and other turns together; a request that was let in waits for one, and
            that time is part of its duration.
    """

    def __init__(
        self, most: int, clock: Clock | None = None, places: SharedPlaces | None = None
    ) -> None:
        self.admission = RequestAdmission(most)
        self._clock = clock or MonotonicClock()
        self._places, self._num_behind = places, 0
        self._queue = PlaceQueue()

    @property
    def waiting(self) -> int:
        """Return how many wait for a place."""
        return self.admission.waiting + self._num_behind

    @asynccontextmanager
    async def turn(self, key: Hashable) -> AsyncIterator[None]:
        """Hold a place for the block, and until its threads have ended; wait where there is none.

        Args:
            key: what the request has in common with itself when it is repeated.

        Raises:
            BusyError: it has to come back later.
        """
        refusal = partial(self._refusal, key)
        if self.admission.arrive(self._clock.now(), key) == "wait":
            await self._queue.wait(
                partial(self._refuse_waiting, refusal), self._give_back, self.admission.leave_queue
            )
        began, is_done, has_place, is_abandoned = self._clock.now(), False, False, False
        threads = request_threads.get() or RequestThreads()

        def free() -> None:
            if has_place and self._places is not None:
                self._places.release(is_abandoned)
            # One that failed or left early says nothing of how long the others take.
            duration_s = self._clock.now() - began if is_done or is_abandoned else None
            self.admission.end(duration_s, is_abandoned)
            self._call_next()

        try:
            await self._acquire(refusal)
            has_place = True
            yield
            is_done = True
        except asyncio.CancelledError:
            is_abandoned = has_place and threads.running > 0
            raise
        finally:
            if is_abandoned:
                self._abandon()
            threads.when_ended(free)

    async def _acquire(self, refusal: Callable[[], BusyError]) -> None:
        if self._places is None:
            return
        self._num_behind += 1
        try:
            await self._places.acquire(refusal)
        finally:
            self._num_behind -= 1

    def _abandon(self) -> None:
        self.admission.abandon()
        if self._places is not None:
            self._places.abandon()
        if not self.admission.can_wait:
            self._queue.refuse_all()

    def _refusal(self, key: Hashable) -> BusyError:
        return self.admission.refuse(self._clock.now(), key)

    def _refuse_waiting(self, refusal: Callable[[], BusyError]) -> BusyError:
        self.admission.leave_queue()
        return refusal()

    def _give_back(self) -> None:
        self.admission.end(None)
        self._call_next()

    def _call_next(self) -> None:
        while self.admission.running < self.admission.most and self._queue.give():
            self.admission.begin()


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
        self._places = SharedPlaces(most)
        self._common = RequestTurns(most, clock)
        self._own: dict[str, RequestTurns] = {}

    def of(self, namespace: str) -> RequestTurns:
        if self._share is None:
            return self._common
        if namespace not in self._own:
            most = min(self._share, self.most)
            self._own[namespace] = RequestTurns(most, self._clock, self._places)
        return self._own[namespace]

    def forget(self, namespace: str) -> None:
        """Drop the turns of a tenant of which no request is under way."""
        self._own.pop(namespace, None)

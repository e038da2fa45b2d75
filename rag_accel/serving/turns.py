"""Places for requests on one event loop, in the order in which they came.

With a share for each tenant, everyone is let in or refused by the load of its own tenant alone.
Those let in then wait, where the tenants together are more than the places, for a place of all.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.serving.admission import RequestAdmission


class RequestTurns:
    """Waiting and leaving for what ``RequestAdmission`` decides; of one event loop.

    Args:
        most: requests that may run at once.
        clock: measures their durations.
        places: of this and other turns together; a request that was let in waits for one, and
            that time is part of its duration.
    """

    def __init__(
        self, most: int, clock: Clock | None = None, places: asyncio.Semaphore | None = None
    ) -> None:
        self.admission = RequestAdmission(most)
        self._clock = clock or MonotonicClock()
        self._places, self._num_behind = places, 0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """Return how many wait for a place."""
        return self.admission.waiting + self._num_behind

    @asynccontextmanager
    async def turn(self, key: Hashable) -> AsyncIterator[None]:
        """Hold a place for the block; wait for one where there is none.

        Args:
            key: what the request has in common with itself when it is repeated.

        Raises:
            BusyError: it has to come back later.
        """
        if self.admission.arrive(self._clock.now(), key) == "wait":
            await self._wait()
        began, is_done = self._clock.now(), False
        try:
            async with self._place():
                yield
            is_done = True
        finally:
            # One that failed or left early says nothing of how long the others take.
            self.admission.end(self._clock.now() - began if is_done else None)
            self._call_next()

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        if self._places is None:
            yield
            return
        self._num_behind += 1
        try:
            await self._places.acquire()
        finally:
            self._num_behind -= 1
        try:
            yield
        finally:
            self._places.release()

    async def _wait(self) -> None:
        place = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # it was called and left in the same moment
                self.admission.end(None)
                self._call_next()
            else:
                self._queue.remove(place)
                self.admission.leave_queue()
            raise

    def _call_next(self) -> None:
        while self._queue and self.admission.running < self.admission.most:
            self.admission.begin()
            self._queue.popleft().set_result(None)


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
        self._places = asyncio.Semaphore(most)
        self._common = RequestTurns(most, clock)
        self._own: dict[str, RequestTurns] = {}

    def of(self, namespace: str) -> RequestTurns:
        """Return the turns of a tenant."""
        if self._share is None:
            return self._common
        if namespace not in self._own:
            most = min(self._share, self.most)
            self._own[namespace] = RequestTurns(most, self._clock, self._places)
        return self._own[namespace]

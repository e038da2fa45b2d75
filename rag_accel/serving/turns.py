"""Places for requests on one event loop, in the order in which they came."""

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
    """

    def __init__(self, most: int, clock: Clock | None = None) -> None:
        self.admission = RequestAdmission(most)
        self._clock = clock or MonotonicClock()
        self._queue: deque[asyncio.Future[None]] = deque()

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
            yield
            is_done = True
        finally:
            # One that failed or left early says nothing of how long the others take.
            self.admission.end(self._clock.now() - began if is_done else None)
            self._call_next()

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

"""The load of a server of vLLM's, read from its ``/metrics``, and the wait until it has room."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from rag_accel.clock import Clock

#: Metrics are read once in so many seconds at most, for all requests together.
READ_EVERY_S = 0.25
_LINE = re.compile(r"^vllm:(\w+)(?:\{[^}]*\})? +([-+.\w]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """The load of a server.

    Args:
        running: requests in its batch.
        waiting: requests that wait for room in it.
        kv_cache_usage: share of its cache that is in use, 0 to 1.
    """

    running: float = 0.0
    waiting: float = 0.0
    kv_cache_usage: float = 0.0


def read_load(metrics: str) -> ServerLoad | None:
    """Return the load that a Prometheus text tells, summed over its engines; None if it does not.

    The usage is that of the fullest engine.
    """
    found: dict[str, list[float]] = {}
    for name, value in _LINE.findall(metrics):
        try:
            found.setdefault(name, []).append(float(value))
        except ValueError:
            continue
    running, waiting = found.get("num_requests_running"), found.get("num_requests_waiting")
    if running is None or waiting is None:
        return None
    return ServerLoad(sum(running), sum(waiting), max(found.get("kv_cache_usage_perc", [0.0])))


class ServerAdmission:
    """A wait of requests until so few others wait in the server.

    For use on one event loop. A server whose metrics cannot be read admits everything.

    Args:
        read: returns the text of the server's metrics; None where there is none.
        most_waiting: the most requests that may wait in the server.
        clock: of the reads.
        sleep: waits for so many seconds.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[str | None]],
        most_waiting: int,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._read, self._most, self._clock, self._sleep = read, most_waiting, clock, sleep
        self._read_at: float | None = None
        self._left: int | None = 0
        self._is_reading = False

    async def room(self) -> None:
        """Return once the server has room for one more request; each takes one place."""
        while not await self._admits():
            await self._sleep(READ_EVERY_S)

    async def _admits(self) -> bool:
        now = self._clock.now()
        is_due = self._read_at is None or now - self._read_at >= READ_EVERY_S
        if is_due and not self._is_reading:
            self._is_reading = True
            try:
                self._left = self._places(await self._read())
                self._read_at = self._clock.now()
            finally:
                self._is_reading = False
        if self._left is None:
            return True
        if self._left <= 0:
            return False
        self._left -= 1
        return True

    def _places(self, metrics: str | None) -> int | None:
        """Return how many requests may be sent before the next read; None for any number."""
        load = None if metrics is None else read_load(metrics)
        return None if load is None else self._most + 1 - int(load.waiting)

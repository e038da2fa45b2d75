"""Put one system under one open load: requests come when they come, however many still wait.

A request's latency counts from the time at which it was due until the caller has its answer, on
one clock for all systems, so that one that falls behind pays for all of its queue. Those that come
while the system warms up are served and not counted. Whoever is not served ``drain_s`` after the
last arrival is cancelled, and counts with the time that it had waited, which is less than it would
have needed.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.emulated.device import EmulatedDevice
from bench.measure import median, percentile
from bench.research.mixed.programs import Answer
from bench.research.mixed.systems import System
from bench.research.mixed.trace import Request, poisson_arrivals
from rag_accel.errors import ConfigError
from rag_accel.system.processor import usable_cores


@dataclass(frozen=True, slots=True)
class Window:
    """How long a load lasts.

    Args:
        warm_s: seconds at the beginning whose requests are not counted.
        counted_s: seconds after that.
        drain_s: seconds that are waited for the last requests.
        seed: of the arrivals.
    """

    warm_s: float
    counted_s: float
    drain_s: float
    seed: int = 0


@dataclass(frozen=True, slots=True)
class MixedLoad:
    """What one system did under one load.

    Args:
        rate_rps: mean arrivals a second.
        latency_s: of every counted request; a lower bound for the ``unserved``.
        unserved: counted requests that were given up.
        cpu_utilisation: CPU time of the process over cores and time.
        device_utilisation: of the emulated device, see ``DeviceStats``.
        answers: of every served request, by its number.
    """

    rate_rps: float
    latency_s: tuple[float, ...]
    unserved: int
    cpu_utilisation: float
    device_utilisation: float
    answers: Mapping[int, Answer]

    @property
    def p50_s(self) -> float:
        """Return the median latency."""
        return median(self.latency_s)

    @property
    def p95_s(self) -> float:
        """Return the 95th percentile of the latency."""
        return percentile(self.latency_s, 0.95)

    @property
    def p99_s(self) -> float:
        """Return the 99th percentile of the latency."""
        return percentile(self.latency_s, 0.99)


async def run_load(
    system: System,
    requests: Sequence[Request],
    rate_rps: float,
    window: Window,
    device: EmulatedDevice,
) -> MixedLoad:
    """Serve Poisson arrivals of ``requests``, again from the first after the last; wait for all.

    Raises:
        ConfigError: if nothing arrives.
        Exception: whatever a request raised.
    """
    arrivals = poisson_arrivals(rate_rps, window.warm_s + window.counted_s, window.seed)
    if not any(due >= window.warm_s for due in arrivals):
        raise ConfigError("nothing arrives", found=f"{rate_rps}/s in {window}")
    began = _now()
    meter = _Meter(device)
    pending: list[_Pending] = []
    for due, request in zip(arrivals, itertools.cycle(requests), strict=False):
        if not meter.is_running and due >= window.warm_s:
            await _sleep_until(began + window.warm_s)
            meter.start()
        await _sleep_until(began + due)
        pending.append(_Pending(request, began + due, due >= window.warm_s, system))
    cpu, busy = await meter.stop_after(began + window.warm_s + window.counted_s)
    await _drain(pending, window.drain_s)
    counted = [one for one in pending if one.is_counted]
    return MixedLoad(
        rate_rps,
        tuple(one.latency_s() for one in counted),
        sum(one.ended_at is None for one in counted),
        cpu,
        busy,
        {one.request.number: one.answer for one in pending if one.answer is not None},
    )


class _Pending:
    """One request, served as a task, and when it ended."""

    def __init__(self, request: Request, due: float, is_counted: bool, system: System) -> None:
        self.request = request
        self.is_counted = is_counted
        self.answer: Answer | None = None
        self.ended_at: float | None = None
        self.task = asyncio.create_task(self._run(system))
        self._due = due
        self._given_up_at = 0.0

    async def _run(self, system: System) -> None:
        self.answer = await system.serve(self.request)
        self.ended_at = _now()

    def give_up(self) -> None:
        self._given_up_at = _now()
        self.task.cancel()

    def latency_s(self) -> float:
        return (self._given_up_at if self.ended_at is None else self.ended_at) - self._due


class _Meter:
    """What the process and the device do between two moments."""

    def __init__(self, device: EmulatedDevice) -> None:
        self._device = device
        self.is_running = False

    def start(self) -> None:
        self.is_running = True
        self._device.reset_stats()
        self._wall, self._cpu = _now(), time.process_time()

    async def stop_after(self, moment: float) -> tuple[float, float]:
        """Return both utilisations, in shares."""
        await _sleep_until(moment)
        wall_s = _now() - self._wall
        cpu_s = time.process_time() - self._cpu
        return cpu_s / (wall_s * usable_cores()), self._device.stats().utilisation


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _sleep_until(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - _now()))


async def _drain(pending: Sequence[_Pending], drain_s: float) -> None:
    tasks = [one.task for one in pending]
    _, left = await asyncio.wait(tasks, timeout=drain_s)
    for one in pending:
        if one.task in left:
            one.give_up()
    for found in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(found, BaseException) and not isinstance(found, asyncio.CancelledError):
            raise found

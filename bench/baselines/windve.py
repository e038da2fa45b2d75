"""WindVE (SPAA 2025) as printed: one bounded queue for each of two devices.

- The queue manager (Algorithm 1): to the accelerator while its queue is not full, else to the CPU
  while its queue is not full, else BUSY. A queue's length counts the queries that wait and those
  that are computed; the print only ever counts up, here a place is free again when its query has
  ended.
- The depth of a queue (Equation 12): the most queries that one batch may have and still end in
  time; 0 for a device that is too slow for one.

``ConvergingQueue`` is the plain way to use two devices: one queue for both, from which each takes
all that it may hold whenever it is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Literal, TypeVar

from rag_accel.accelerator.measured_members import depth_within
from rag_accel.engine_api import LatencyModel

T = TypeVar("T")

Device = Literal["main", "auxiliary"]


def depths_of(
    main: LatencyModel, auxiliary: LatencyModel | None, slo_s: float
) -> dict[Device, int]:
    """Return the depth of each queue by Equation 12."""
    depth = 0 if auxiliary is None else depth_within(auxiliary, slo_s)
    return {"main": depth_within(main, slo_s), "auxiliary": depth}


class QueueManager(Generic[T]):
    """Algorithm 1: which of two bounded queues a query goes to.

    Args:
        depths: most queries that wait or are computed on each device.
    """

    def __init__(self, depths: dict[Device, int]) -> None:
        self._depths = depths
        self._waiting: dict[Device, list[T]] = {"main": [], "auxiliary": []}
        self._computed: dict[Device, int] = {"main": 0, "auxiliary": 0}

    def put(self, query: T) -> Device | Literal["BUSY"]:
        """Queue a query; return where, or ``BUSY`` if there is no room."""
        if not self._is_full("main"):
            self._waiting["main"].append(query)
            return "main"
        if not self._is_full("auxiliary"):
            self._waiting["auxiliary"].append(query)
            return "auxiliary"
        return "BUSY"

    def take(self, device: Device) -> list[T]:
        """Return the next batch of a device that is free: all that waits for it."""
        batch, self._waiting[device] = self._waiting[device], []
        self._computed[device] += len(batch)
        return batch

    def end(self, device: Device, batch: Sequence[T]) -> None:
        """Free the places of a batch, however it has ended."""
        self._computed[device] -= len(batch)

    def length(self, device: Device) -> int:
        """Return how many queries wait for a device or are computed by it."""
        return len(self._waiting[device]) + self._computed[device]

    def _is_full(self, device: Device) -> bool:
        return self.length(device) >= self._depths[device]


class ConvergingQueue(Generic[T]):
    """One queue for both devices, as long as both together may hold.

    Args:
        depths: most queries of a batch on each device; together, most that wait or are computed.
    """

    def __init__(self, depths: dict[Device, int]) -> None:
        self._depths = depths
        self._waiting: list[T] = []
        self._computed = 0

    def put(self, query: T) -> Literal["queued", "BUSY"]:
        """Queue a query, or say that there is no room."""
        if len(self._waiting) + self._computed >= sum(self._depths.values()):
            return "BUSY"
        self._waiting.append(query)
        return "queued"

    def take(self, device: Device) -> list[T]:
        """Return the next batch of a device that is free: the oldest, as many as it may hold."""
        most = self._depths[device]
        batch, self._waiting = self._waiting[:most], self._waiting[most:]
        self._computed += len(batch)
        return batch

    def end(self, device: Device, batch: Sequence[T]) -> None:
        """Free the places of a batch, however it has ended."""
        self._computed -= len(batch)

"""The passing of an emulated device's time, and the delivery of what it makes."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rag_accel.clock import Clock
from rag_accel.testing.emulated.batch import Update

# Let the time of an emulated device pass: in real seconds, or at once in virtual ones.


class Waiter(Protocol):
    """The way in which device time passes."""

    def wait_until(self, wake: threading.Condition, deadline_s: float | None) -> None:
        """Return at ``deadline_s`` of the clock or when ``wake``, which is held, is notified.

        Returning early is allowed; ``None`` waits for a notification only.
        """
        ...


class ClockWaiter:
    """A waiter on a real clock; it releases the lock and uses no CPU."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def wait_until(self, wake: threading.Condition, deadline_s: float | None) -> None:
        """Wait on the condition until the deadline."""
        wake.wait(None if deadline_s is None else max(0.0, deadline_s - self._clock.now()))


class VirtualTime:
    """A clock and waiter whose seconds pass at once: exact arithmetic, nothing sleeps.

    Give the same object as ``clock`` and ``waiter`` of one device.
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        """Return the virtual seconds."""
        return self._now_s

    def wait_until(self, wake: threading.Condition, deadline_s: float | None) -> None:
        """Move to the deadline; without one, wait for the notification."""
        if deadline_s is None:
            wake.wait()
        else:
            self._now_s = max(self._now_s, deadline_s)


# Sinks that bring a device's reports to a waiting thread or event loop.


@dataclass(frozen=True, slots=True, eq=False)
class ThreadSink:
    """A sink whose updates go to one blocked thread."""

    channel: queue.SimpleQueue[Update] = field(default_factory=queue.SimpleQueue)

    def deliver(self, updates: Sequence[Update]) -> bool:
        """Queue the updates."""
        for update in updates:
            self.channel.put(update)
        return True


@dataclass(frozen=True, slots=True)
class LoopSink:
    """A sink whose updates go to one coroutine.

    Sinks of one loop are equal, so the device wakes that loop once per step, not once per caller.
    """

    loop: asyncio.AbstractEventLoop
    channel: asyncio.Queue[Update] = field(default_factory=asyncio.Queue, compare=False)

    def deliver(self, updates: Sequence[Update]) -> bool:
        """Post the updates to the loop; false if it is closed."""
        try:
            self.loop.call_soon_threadsafe(_spread, updates)
        except RuntimeError:
            # On a closed loop no task waits any more; anything else is a fault of ours.
            if not self.loop.is_closed():
                raise
            return False
        return True


def _spread(updates: Sequence[Update]) -> None:
    for update in updates:
        sink = update.sequence.sink
        if isinstance(sink, LoopSink):
            sink.channel.put_nowait(update)

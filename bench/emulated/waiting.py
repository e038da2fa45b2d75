"""Waiters for an emulated device's time: it passes in real seconds, or at once in virtual ones."""

from __future__ import annotations

import threading
from typing import Protocol

from rag_accel.clock import Clock


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

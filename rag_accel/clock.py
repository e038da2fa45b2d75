"""The time in seconds; the only clocks the package uses. No sleeping here."""

from __future__ import annotations

import time
from typing import Protocol, runtime_checkable

#: How often, in seconds, a thread that waits looks for a signal: one that comes just before it
#: blocks wakes nobody.
SIGNAL_S = 0.5


@runtime_checkable
class Clock(Protocol):
    """A source of monotonic seconds."""

    def now(self) -> float:
        """Return seconds since an arbitrary fixed point; never decreases."""
        ...


class MonotonicClock:
    """The operating system's monotonic clock."""

    #: return ``time.monotonic()`` seconds
    now = staticmethod(time.monotonic)

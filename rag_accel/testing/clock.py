"""A clock that only a test moves, so that no test has to wait for time to pass."""

from __future__ import annotations

import threading

from rag_accel.errors import ConfigError


class ManualClock:
    """A clock that stands still until ``advance`` is called. Thread-safe.

    ``sleep`` blocks until other threads have advanced the clock far enough, so an engine that is
    given it as its waiter takes exactly as long as the test says::

        clock = ManualClock()
        engine = FakeEngine(durations_s=[2.0], wait=clock.sleep)
        ...                              # a thread steps the engine
        clock.wait_for_sleepers(1)
        clock.advance(2.0)               # the step ends
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now = start_s
        self._changed = threading.Condition()
        self._sleepers = 0

    def now(self) -> float:
        """Return the seconds this clock stands at."""
        with self._changed:
            return self._now

    def advance(self, seconds: float) -> float:
        """Move the clock forward, wake the threads that slept long enough, and return the new time.

        Raises:
            ConfigError: if ``seconds`` is negative or no number; time never decreases.
        """
        if not seconds >= 0:
            raise ConfigError(
                "a clock cannot go back", where="ManualClock.advance", found=seconds, valid="from 0"
            )
        with self._changed:
            self._now += seconds
            self._changed.notify_all()
            return self._now

    def sleep(self, seconds: float) -> None:
        """Block until the clock has been advanced by ``seconds`` from now on."""
        with self._changed:
            until = self._now + seconds
            self._sleepers += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self._now >= until)
            finally:
                self._sleepers -= 1

    def wait_for_sleepers(self, count: int, timeout_s: float = 5.0) -> None:
        """Block until at least ``count`` threads sleep on this clock.

        Raises:
            TimeoutError: after ``timeout_s`` real seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._sleepers >= count, timeout_s):
                raise TimeoutError(f"{self._sleepers} of {count} sleepers after {timeout_s} s")

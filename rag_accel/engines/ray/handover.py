"""The handover of a call that brings work to an actor that has none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

from rag_accel.engines.ray.cluster import ActorCall


class CallHandover:
    """Passes a call from the thread that sends work to the one that collects outputs.

    An actor without work need not be polled: the call that brings work returns the first outputs,
    too, which saves a second call under way. Whoever sends claims the collecting thread, if it
    waits, and must then ``put``.
    """

    def __init__(self) -> None:
        self._wake = threading.Condition()
        self._state: Literal["away", "waiting", "claimed", "ended"] = "away"
        self._call: ActorCall | None = None

    def wait(self, timeout_s: float, is_idle: Callable[[], bool]) -> ActorCall | None:
        """Return a call that brought work; None after a time, or at once if there is work.

        Work that found nobody waiting was sent without a handover; ``is_idle`` sees it.
        """
        with self._wake:
            if self._state == "ended":
                return None
            self._state = "waiting"
            if is_idle():
                self._wake.wait_for(lambda: self._state != "waiting", timeout_s)
            self._wake.wait_for(lambda: self._state != "claimed")
            if self._state == "waiting":
                self._state = "away"
            call, self._call = self._call, None
            return call

    def claim(self) -> bool:
        """Tell whether a thread waits, which now waits for ``put``."""
        with self._wake:
            if self._state != "waiting":
                return False
            self._state = "claimed"
            return True

    def put(self, call: ActorCall | None) -> None:
        """Hand a call over; None where it could not begin."""
        with self._wake:
            self._call = call
            self._state = "ended" if self._state == "ended" else "away"
            self._wake.notify_all()

    def end(self) -> None:
        """Let nobody wait any more."""
        with self._wake:
            self._state = "ended"
            self._wake.notify_all()

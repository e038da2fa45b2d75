"""A clock whose seconds pass at once, and a caller that waits for a device's whole answer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

from bench.emulated.batch import Update
from bench.emulated.device import EmulatedDevice
from rag_accel.engine_api import GenerationInput, GenerationOutput


class VirtualTime:
    """Exact arithmetic, nothing sleeps; its ``wait_until`` lets the time of one device pass."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now(self) -> float:
        return self._now_s

    def wait_until(self, wake: threading.Condition, deadline_s: float | None) -> None:
        """Move to the deadline; without one, wait for the notification."""
        if deadline_s is None:
            wake.wait()
        else:
            self._now_s = max(self._now_s, deadline_s)


class Caller:
    """A sink of updates on which a thread waits."""

    def __init__(self) -> None:
        self._updates: queue.SimpleQueue[Update] = queue.SimpleQueue()

    def deliver(self, updates: Sequence[Update]) -> None:
        for update in updates:
            self._updates.put(update)

    def wait(self) -> Update:
        return self._updates.get(timeout=60)


def generate(device: EmulatedDevice, request: GenerationInput) -> GenerationOutput:
    """Return the completion of a request, or raise what ended it."""
    caller = Caller()
    device.submit([device.plan(device.script(request), caller)])
    update = caller.wait()
    if update.error is not None:
        raise update.error
    assert update.output is not None
    return update.output

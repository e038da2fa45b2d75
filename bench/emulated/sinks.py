"""Sinks that bring a device's reports to a waiting thread or event loop."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.emulated.batch import Update


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

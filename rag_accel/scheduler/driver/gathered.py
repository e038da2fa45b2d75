"""Leaves that several tasks of one event loop submit in one turn of that loop, sent together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from rag_accel.scheduler.driver.leaf import LeafClient
from rag_accel.scheduler.messages import LeafArrived


class Gathered(threading.local):
    """Messages of one loop's tasks, held back until all tasks that can run now have run.

    Tasks that wake together would otherwise be parted by how much of them the driver's thread sees
    when it first gets to look.
    """

    def __init__(self, send: Callable[[tuple[LeafArrived, LeafClient]], None]) -> None:
        self._send = send
        #: the loop that was asked to hand over; without one nothing is kept
        self.loop: asyncio.AbstractEventLoop | None = None
        self._items: list[tuple[LeafArrived, LeafClient]] = []

    def add(self, event: LeafArrived, client: LeafClient) -> None:
        """Keep one; the first asks the loop to hand over after everybody's turn."""
        loop = asyncio.get_running_loop()
        if self.loop is not loop:
            self.flush()  # of a loop that ended before it came to that
            self.loop = loop
            loop.call_soon(self.flush)
        self._items.append((event, client))

    def flush(self) -> None:
        """Send this thread's leaves."""
        if self.loop is not None:
            items, self._items, self.loop = self._items, [], None
            for item in items:
                self._send(item)

"""Hand over together what several tasks of one loop bring in during one turn of that loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from rag_accel.scheduler.driver.leaf import LeafClient
from rag_accel.scheduler.messages import LeafArrived


class Gathered(threading.local):
    """Keep what the tasks of this thread's loop bring in until all that can run now have run.

    Tasks that wake together would otherwise be parted by how much of them the driver's thread sees
    when it first gets to look.
    """

    def __init__(self, send: Callable[[LeafArrived, LeafClient], None]) -> None:
        self._send = send
        self._loop: asyncio.AbstractEventLoop | None = None
        self._items: list[tuple[LeafArrived, LeafClient]] = []

    def add(self, event: LeafArrived, client: LeafClient) -> None:
        """Keep one; the first asks the loop to hand over after everybody's turn."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self.flush()  # of a loop that ended before it came to that
            self._loop = loop
            loop.call_soon(self.flush)
        self._items.append((event, client))

    def flush(self) -> None:
        """Hand over what this thread keeps."""
        if self._loop is not None:
            items, self._items, self._loop = self._items, [], None
            for event, client in items:
                self._send(event, client)

"""A queue of results for the worker thread that steps an engine."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


class Outbox(Generic[ItemT]):
    """A queue that any thread fills and one thread waits on; ``interrupt`` ends the wait."""

    def __init__(self) -> None:
        self._wake = threading.Condition()
        self._items: list[ItemT] = []
        self._interrupted = False

    def put(self, items: Iterable[ItemT]) -> None:
        """Add items and wake the waiter."""
        with self._wake:
            self._items.extend(items)
            self._wake.notify_all()

    def take(self, timeout_s: float | None) -> list[ItemT]:
        """Return the items, waiting up to ``timeout_s`` (None: without bound) for a first one.

        An interrupt that came since the last call ends this wait, so none is ever lost.
        """
        with self._wake:
            self._wake.wait_for(lambda: self._items or self._interrupted, timeout_s)
            taken, self._items = self._items, []
            self._interrupted = False
            return taken

    def interrupt(self) -> None:
        """Make the present or the next ``take`` return at once."""
        with self._wake:
            self._interrupted = True
            self._wake.notify_all()

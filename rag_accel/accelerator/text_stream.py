"""Hold a request's text between its engine and its caller."""

from __future__ import annotations

from collections import deque
from threading import Lock


class TextStream:
    """Buffer text between the thread that makes it and the one that takes it, bounded by merging.

    No text is lost and decoding never waits: past ``limit`` items new text joins the last one.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[str] = deque()
        self._lock = Lock()

    def put(self, text: str) -> None:
        """Add text; any thread."""
        with self._lock:
            if len(self._items) >= self._limit:
                self._items[-1] += text
            else:
                self._items.append(text)

    def take(self) -> list[str]:
        """Take all that is buffered."""
        with self._lock:
            items = list(self._items)
            self._items.clear()
        return items

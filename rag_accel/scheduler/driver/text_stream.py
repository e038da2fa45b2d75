"""A text buffer between a producer thread and a consumer thread or loop."""

from __future__ import annotations

from collections import deque
from threading import Lock

#: Items that a stream buffers before further ones are merged.
STREAM_ITEMS = 256


class TextStream:
    """A text buffer between one producer and one consumer, bounded by merging.

    No text is lost and decoding never waits: past ``STREAM_ITEMS`` new text joins the last item.
    """

    def __init__(self) -> None:
        self._items: deque[str] = deque()
        self._lock = Lock()

    def put(self, text: str) -> None:
        """Add text; any thread."""
        with self._lock:
            if len(self._items) >= STREAM_ITEMS:
                self._items[-1] += text
            else:
                self._items.append(text)

    def take(self) -> list[str]:
        """Take all that is buffered."""
        with self._lock:
            items = list(self._items)
            self._items.clear()
        return items

"""Acceleration of everything that is intercepted, for the rest of a process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack


class ProcessSwitch:
    """A block of ``activate()`` without an end of its own.

    Args:
        activate: returns such a block.
    """

    def __init__(self, activate: Callable[[], AbstractContextManager[object]]) -> None:
        self._activate = activate
        self._lock = threading.Lock()
        self._block: ExitStack | None = None

    def on(self) -> None:
        """Open the block; once is enough."""
        with self._lock:
            if self._block is None:
                block = ExitStack()
                block.enter_context(self._activate())
                self._block = block

    def off(self) -> None:
        """Close it again."""
        with self._lock:
            block, self._block = self._block, None
        if block is not None:
            block.close()

"""The threads that work for one request of a server, also once its client has given up.

A running thread cannot be cancelled. Whatever runs calls for a request in threads counts them here,
so that the server takes the request for ended only once all of them have come back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial


class RequestThreads:
    """A count of the threads that work for a request; a context manager around what each runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._when_ended: list[Callable[[], object]] = []
        self.running = 0

    def __enter__(self) -> None:
        with self._lock:
            self.running += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self.running -= 1
            if self.running:
                return
            ended, self._when_ended = self._when_ended, []
        for tell in ended:
            with suppress(RuntimeError):  # the loop is closed
                tell()

    def when_ended(self, do: Callable[[], object]) -> None:
        """Call on the running loop once no thread runs: at once, or when the last has ended."""
        with self._lock:
            if self.running:
                loop = asyncio.get_running_loop()
                self._when_ended.append(partial(loop.call_soon_threadsafe, do))
                return
        do()


request_threads: ContextVar[RequestThreads | None] = ContextVar(
    "rag_accel_request_threads", default=None
)
"""Those of the request that a context belongs to, of a server."""

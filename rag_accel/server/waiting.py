"""Callers that wait for a change: threads on an event, tasks on their loop, without polling."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from rag_accel.clock import SIGNAL_S
from rag_accel.errors import ConfigError
from rag_accel.server.stats import ServedId

T = TypeVar("T")

#: an event cannot be waited for without end, and an early look costs nothing
MAX_WAIT_S = 3600.0


class Listeners:
    """The waiting callers of one request or (``None``) of any. Thread-safe."""

    def __init__(self) -> None:
        # Re-entrant: a finalizer may come here while its own thread is inside.
        self._lock = threading.RLock()
        self._waiting: dict[ServedId | None, dict[Callable[[], None], None]] = {}

    @contextmanager
    def listening(self, key: ServedId | None, tell: Callable[[], None]) -> Iterator[None]:
        """Let ``tell`` be called for each change while the block runs; from any thread."""
        with self._lock:
            self._waiting.setdefault(key, {})[tell] = None
        try:
            yield
        finally:
            with self._lock:
                told = self._waiting[key]
                del told[tell]
                if not told:
                    del self._waiting[key]

    def tell(self, key: ServedId | None = None) -> None:
        """Wake the callers that wait for this request or for any."""
        with self._lock:
            keys = (None,) if key is None else (key, None)
            waiting = [tell for key in keys for tell in self._waiting.get(key, ())]
        for tell in waiting:
            tell()

    def wait(
        self, key: ServedId | None, look: Callable[[], T | None], timeout_s: float | None
    ) -> T | None:
        """Return the first thing that ``look`` finds, None after ``timeout_s`` seconds."""
        until = _until(timeout_s)
        woken = threading.Event()
        with self.listening(key, woken.set):
            while (found := look()) is None:
                left = _left(until)
                if left <= 0:
                    return None
                woken.wait(min(left, SIGNAL_S))
                woken.clear()
            return found

    async def await_(
        self, key: ServedId | None, look: Callable[[], T | None], timeout_s: float | None
    ) -> T | None:
        """Do as ``wait`` without blocking the loop."""
        until = _until(timeout_s)
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(woken.set)

        with self.listening(key, tell):
            while (found := look()) is None:
                left = _left(until)
                if left <= 0:
                    return None
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await woken.wait()
                woken.clear()
            return found


def _until(timeout_s: float | None) -> float | None:
    if timeout_s is None:
        return None
    if not timeout_s >= 0:
        raise ConfigError("bad timeout", where="timeout_s", found=timeout_s, valid="from 0")
    return time.monotonic() + timeout_s


def _left(until: float | None) -> float:
    return MAX_WAIT_S if until is None else min(MAX_WAIT_S, until - time.monotonic())

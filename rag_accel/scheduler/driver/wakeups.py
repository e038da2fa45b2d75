"""Wake callers on their own loops: once per loop and event, however many of its tasks wait."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger("rag_accel.scheduler")

Call = Callable[[], None]


class LoopWakeups:
    """Gather calls by loop until ``flush``. Used by one thread at a time."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: dict[asyncio.AbstractEventLoop, list[tuple[Call, Call | None]]] = {}

    def add(self, loop: asyncio.AbstractEventLoop, call: Call, lost: Call | None = None) -> None:
        """Run ``call`` on a loop at the next ``flush``; ``lost`` here if that loop is closed."""
        self._calls.setdefault(loop, []).append((call, lost))

    def flush(self) -> None:
        """Hand the gathered calls to their loops."""
        if not self._calls:
            return
        gathered, self._calls = self._calls, {}
        for loop, calls in gathered.items():
            try:
                loop.call_soon_threadsafe(_run_all, [call for call, _ in calls])
            except RuntimeError:
                logger.debug("a caller's loop was closed before its result arrived")
                _run_all([lost for _, lost in calls if lost is not None])


def _run_all(calls: list[Call]) -> None:
    for call in calls:
        call()

"""An asyncio event loop in a thread of its own, started and stopped by handle."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from rag_accel.errors import ClosedError

ResultT = TypeVar("ResultT")


class LoopThread:
    """One event loop in one daemon thread until ``close``.

    The loop is private: no policy, default loop or executor of the process is touched.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._closed = False

    @property
    def is_started(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        """Start the thread once; later calls do nothing. Raises ClosedError after ``close``."""
        if self._closed:
            raise ClosedError("the event loop is closed", where=self._name)
        if self._thread is None:
            self._thread = threading.Thread(target=self._main, name=self._name, daemon=True)
            self._thread.start()
            self._ready.wait()

    def post(self, callback: Callable[..., object], *args: object) -> None:
        """Call ``callback(*args)`` on the loop soon, in the order of posting."""
        self._running_loop().call_soon_threadsafe(callback, *args)

    def call(self, work: Coroutine[Any, Any, ResultT]) -> concurrent.futures.Future[ResultT]:
        return asyncio.run_coroutine_threadsafe(work, self._running_loop())

    def close(self) -> None:
        """Cancel what runs, wait until it has ended, and end the thread; idempotent."""
        self._closed = True
        if self._thread is None or not self._thread.is_alive() or self._stop is None:
            return
        self._running_loop().call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise ClosedError("the event loop is not running", where=self._name)
        return self._loop

    def _main(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._ready.set()
        await self._stop.wait()

"""Run sync-only calls of async callers in threads of our own, never in their loop's executor."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from rag_accel.errors import ClosedError, ForkedError

T = TypeVar("T")


class CallPool:
    """Keep up to ``max_threads`` threads, each started when a call comes and none is idle.

    They are daemons: a call that never returns, and that its caller has left behind at a deadline,
    must not keep the process from ending.
    """

    def __init__(self, max_threads: int) -> None:
        self._max_threads = max_threads
        self._lock = threading.Lock()
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads = 0
        #: idle threads less calls that wait for one
        self._idle = 0
        self._closed = False
        self._pid = os.getpid()

    def submit(self, fn: Callable[[], T]) -> Future[T]:
        """Start ``fn()`` in a thread, from any thread.

        Raises:
            ClosedError: after ``close()``.
            ForkedError: in a forked child, where none of the threads exists.
        """
        if os.getpid() != self._pid:  # the lock may be held by a thread that is not here
            raise ForkedError(
                "an accelerator made before fork() was used in the child",
                hint="make the Accelerator in the child, or use the process default",
            )
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise ClosedError("the accelerator is closed", hint="make a new one")
            if self._idle <= 0 and self._threads < self._max_threads:
                self._start_thread()
            self._idle -= 1
            self._calls.put((future, fn))
        return future

    def start(self, fn: Callable[[], T]) -> asyncio.Future[T]:
        """Start ``fn()`` in a thread with a copy of the caller's context; await the result.

        Raises like ``submit``, at once; awaiting raises what ``fn`` raised.
        """
        context = contextvars.copy_context()
        return asyncio.wrap_future(self.submit(lambda: context.run(_shielded, fn)))

    async def run(self, fn: Callable[[], T]) -> T:
        """Return ``fn()``, run in a thread with a copy of the caller's context."""
        return await self.start(fn)

    def close(self) -> None:
        """Refuse further calls; those already taken in still run, and end by themselves."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in range(self._threads):
                self._calls.put(None)

    def _start_thread(self) -> None:
        name = f"rag-accel-call-{self._threads + 1}"
        threading.Thread(target=self._work, name=name, daemon=True).start()
        self._threads += 1
        self._idle += 1

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            _run(*call)
            # The next get() may block for long: the call must not stay alive with it.
            del call
            with self._lock:
                self._idle += 1


def _shielded(fn: Callable[[], T]) -> T:
    # A StopIteration cannot pass through a future: it would hang the awaiting task.
    try:
        return fn()
    except StopIteration as error:
        raise RuntimeError from error


def _run(future: Future[T], fn: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        value = fn()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(value)
    finally:
        # The error's traceback leads here, and from the future back to the error.
        del future, fn

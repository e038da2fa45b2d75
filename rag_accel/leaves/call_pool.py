"""A thread pool for sync-only calls of async callers, separate from their loop's executor.

A call that waits inside a thread for another call of the pool holds the thread that one needs: with
enough of them all threads wait, for ever. So a call that is made inside another one never waits for
a thread: where the caller has a loop it runs in that loop's executor, as it would without us, else
in a thread beyond the bound, which ends with it.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import Context, ContextVar
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from rag_accel.errors import ClosedError, ForkedError
from rag_accel.leaves.request_threads import request_threads
from rag_accel.system.forks import forks

T = TypeVar("T")

#: how long a call waits for a thread while none of its pool's calls ends; then those who hold the
#: threads may well be waiting for it, by ways that no context shows
STALL_S = 5.0

#: set inside every call of a pool, and in all contexts copied from there
_is_inside: ContextVar[bool] = ContextVar("rag_accel_inside_call", default=False)


class CallPool:
    """Up to ``max_threads`` threads, each started when a call comes and none is idle.

    They are daemons: a call that never returns, and that its caller has left behind at a deadline,
    must not keep the process from ending.

    Args:
        max_threads: bounds the threads that are kept; calls made inside others may have more.
        stall_s: how long a call of a loop waits, in seconds, while no call ends, until it runs in
            its loop's own executor.
    """

    def __init__(self, max_threads: int, stall_s: float = STALL_S) -> None:
        self._max_threads = max_threads
        self._stall_s = stall_s
        self._lock = threading.Lock()
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._threads = 0
        #: idle threads less calls that wait for one
        self._idle = 0
        self._ended = 0
        self._closed = False
        self._forks = forks.number

    def submit(self, fn: Callable[[], T], context: Context | None = None) -> Future[T]:
        """Start ``fn()`` in a thread, in ``context`` if one is given; from any thread.

        With a context of a call of a pool it starts at once, if need be in a thread beyond the
        bound.

        Raises:
            ClosedError: after ``close()``.
            ForkedError: in a forked child, where none of the threads exists.
        """
        self._require_own_process()
        may_wait = context is None or not context.get(_is_inside, False)
        marked = fn if context is None else partial(context.run, partial(_marked, fn))
        call = SubmittedCall(marked, context)
        with self._lock:
            self._require_open()
            if self._is_full and not may_wait:
                _start("rag-accel-call-inner", call.run)
            else:
                self._put(call.run)
        return call.future

    def start_if_free(self, fn: Callable[[], None], context: Context) -> bool:
        """Start ``fn()``, which must not raise, in ``context`` unless it would have to wait.

        Raises like ``submit``.
        """
        self._require_own_process()
        call = SubmittedCall(partial(context.run, partial(_marked, fn)), context)
        with self._lock:
            self._require_open()
            if self._is_full:
                return False
            self._put(call.run)
        return True

    def start(self, fn: Callable[[], T]) -> asyncio.Future[T]:
        """Start ``fn()`` in a thread with a copy of the caller's context; await the result.

        Made inside another call, it runs in the running loop's executor unless a thread is idle.
        Raises like ``submit``, at once; awaiting raises what ``fn`` raised.
        """
        self._require_own_process()
        call = _Awaited(fn)
        with self._lock:
            self._require_open()
            must_wait = self._is_full
            if not (must_wait and _is_inside.get()):
                self._put(call.run)
                if not must_wait:
                    return call.future
        if _is_inside.get():
            return call.loop.run_in_executor(None, call.compute)
        task = asyncio.ensure_future(self._unstalled(call))
        task.add_done_callback(lambda _: call.future.cancel())  # also where it never began
        return task

    async def _unstalled(self, call: _Awaited[T]) -> T:
        """Wait for a queued call; one that stays queued while nothing ends leaves the queue."""
        while not call.future.done():
            ended = self._ended
            await asyncio.wait([call.future], timeout=self._stall_s)
            if ended == self._ended and call.take():
                return await call.loop.run_in_executor(None, call.compute)
        return await call.future

    async def run(self, fn: Callable[[], T]) -> T:
        """Return ``fn()``, run in a thread with a copy of the caller's context."""
        return await self.start(fn)

    def close(self) -> None:
        """Refuse further calls; those already taken in still run, and end by themselves."""
        if forks.number != self._forks:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for _ in range(self._threads):
                self._calls.put(None)

    def _require_own_process(self) -> None:
        if forks.number != self._forks:  # the lock may be held by a thread that is not here
            raise ForkedError(
                "an accelerator made before fork() was used in the child",
                hint="make the Accelerator in the child, or use the process default",
            )

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("the accelerator is closed", hint="make a new one")

    @property
    def _is_full(self) -> bool:
        return self._idle <= 0 and self._threads >= self._max_threads

    def _put(self, call: Callable[[], object]) -> None:
        """Queue a call, and start a thread for it if none is idle; under the lock."""
        if self._idle <= 0 and self._threads < self._max_threads:
            _start(f"rag-accel-call-{self._threads + 1}", self._work)
            self._threads += 1
            self._idle += 1
        self._idle -= 1
        self._calls.put(call)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            # The next get() may block for long: the call must not stay alive with it.
            del call
            with self._lock:
                self._idle += 1
                self._ended += 1


class SubmittedCall(Generic[T]):
    """A call whose caller is any thread.

    Args:
        fn: what is called.
        context: the caller's, which knows the request; None for that of the running thread.
    """

    __slots__ = ("_fn", "_threads", "future")

    def __init__(self, fn: Callable[[], T], context: Context | None = None) -> None:
        self._fn, self._threads = fn, _threads_of(context)
        self.future: Future[T] = Future()

    def run(self) -> None:
        """Run it in this thread, unless it was cancelled."""
        try:
            with self._threads:  # before it looks: one that is cancelled later is counted
                if not self.future.set_running_or_notify_cancel():
                    return
                value = self._fn()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(value)
        finally:
            # The error's traceback leads here, and from the future back to the error.
            del self


class _Awaited(Generic[T]):
    """A call that a task awaits; it sees a copy of the task's context.

    ``asyncio.wrap_future`` would do, with a second future, its lock and its callbacks each time.
    """

    __slots__ = ("_threads", "_untaken", "compute", "future", "loop")

    def __init__(self, fn: Callable[[], T]) -> None:
        shielded = partial(_shielded, fn)
        self.compute: Callable[[], T] = partial(contextvars.copy_context().run, shielded)
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self.loop.create_future()
        self._threads = _threads_of(None)
        #: emptied by the one who runs the call; single operations on a list need no lock
        self._untaken = [True]

    def take(self) -> bool:
        """Tell whether the call is still to be run; the first to ask runs it."""
        try:
            return self._untaken.pop()
        except IndexError:
            return False

    def run(self) -> None:
        loop, compute = self.loop, self.compute
        try:
            with self._threads:  # before it looks: one that is cancelled later is counted
                if self.future.cancelled() or not self.take():
                    return
                # The task may go on, and drop what it called, before this thread does.
                del self.compute
                settle = partial(_settle, self.future, compute())
        except BaseException as error:
            settle = partial(_fail, self.future, error)
        del compute
        try:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle)
        finally:
            # The error's traceback leads here, and from here back to the error.
            del self, settle


def _threads_of(context: Context | None) -> AbstractContextManager[object]:
    """Return what counts a thread as one of the request that a context belongs to."""
    threads = request_threads.get() if context is None else context.get(request_threads)
    return nullcontext() if threads is None else threads


def _start(name: str, work: Callable[[], None]) -> None:
    threading.Thread(target=work, name=name, daemon=True).start()


def _marked(fn: Callable[[], T]) -> T:
    """Return ``fn()``, run as a call of a pool."""
    _is_inside.set(True)
    return fn()


def _shielded(fn: Callable[[], T]) -> T:
    _is_inside.set(True)
    # A StopIteration cannot pass through a future: it would hang the awaiting task.
    try:
        return fn()
    except StopIteration as error:
        raise RuntimeError from error


def _settle(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)

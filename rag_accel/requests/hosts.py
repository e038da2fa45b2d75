"""Hosts: a request's user code runs where its caller is, in its thread, its loop or a pool."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Protocol

from rag_accel.clock import SIGNAL_S
from rag_accel.errors import RequestCancelledError
from rag_accel.leaves.call_pool import CallPool
from rag_accel.scheduler.driver import Driver

Call = Callable[[], Any]
Report = Callable[[Any, BaseException | None], None]

#: how long a caller that leaves waits for its cancelled coroutines to clean up
UNWIND_S = 0.05

#: how far ahead the timer is set that only holds a host
ANCHOR_S = 3600.0


class Host(Protocol):
    """A runner of calls where the caller is. The scheduler's threads call ``run`` and ``wake``."""

    def run(self, call: Call, report: Report) -> None:
        """Run one call as soon as possible; report its value or its exception, in any case."""
        ...

    def wake(self) -> None:
        """Say that output has come or that the request is over."""
        ...


class SyncHost:
    """The host of a blocking caller: its thread runs a call whenever it is free, a pool the others.

    A context manager around the caller's waiting. Without ``inline`` the pool runs all calls, so
    that the caller can leave in time; ``left`` is called when it does.
    """

    def __init__(self, pool: CallPool, inline: bool, left: Callable[[], None]) -> None:
        self._pool = pool
        self._inline = inline
        self._mailbox: SimpleQueue[tuple[Call, Report] | None] = SimpleQueue()
        self._lock = Lock()
        self._busy = False
        self._left = left
        self._is_left = False
        #: of the call that this thread runs
        self._owed: Report | None = None
        self._context = contextvars.copy_context()

    def __enter__(self) -> SyncHost:
        return self

    def __exit__(self, *error: object) -> None:
        """Refuse calls given to this thread that will not run; a second report is ignored."""
        with self._lock:
            self._is_left = True
        owed, self._owed = self._owed, None
        while True:
            if owed is not None:
                owed(None, _left_error())
            try:
                message = self._mailbox.get_nowait()
            except Empty:
                break
            owed = message[1] if message is not None else None
        self._left()

    def run(self, call: Call, report: Report) -> None:
        """Give the call to the caller's thread if it is idle, else to the pool."""
        with self._lock:
            is_left = self._is_left
            inline = self._inline and not self._busy and not is_left
            if inline:
                self._busy = True
                self._mailbox.put((call, report))
        if is_left:
            report(None, _left_error())
        elif not inline:
            self._pool.submit(partial(_finish, call, report), self._context.copy())

    def wake(self) -> None:
        """Let the waiting thread look."""
        self._mailbox.put(None)

    def attend(self) -> None:
        """Wait for a wake-up, or for a call and run it."""
        message = self._next_message()
        if message is not None:
            self._owed = message[1]
            # Free before the report: what it sets off may come back to this thread.
            _finish(*message, self._become_free)
            self._owed = None

    def _next_message(self) -> tuple[Call, Report] | None:
        while True:
            with suppress(Empty):
                return self._mailbox.get(timeout=SIGNAL_S)

    def _become_free(self) -> None:
        self._busy = False


class AsyncHost:
    """The host of a task: async calls run on its loop, sync ones in the pool with its context.

    An async context manager around its waiting. A task that leaves early gives cancelled coroutines
    a moment to clean up on its loop; ``left`` is called when it does.
    """

    def __init__(self, pool: CallPool, driver: Driver, left: Callable[[], None]) -> None:
        self._pool = pool
        self._driver = driver
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._lock = Lock()
        self._left = left
        self._is_left = False
        #: reports still to be made; a task that is cancelled before it starts cannot make its own
        self._owed: set[Report] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._context = contextvars.copy_context()

    async def __aenter__(self) -> AsyncHost:
        self._anchor()
        return self

    def _anchor(self) -> None:
        """Let the loop hold this, and so its task, until it is closed; see ``WeakHost``."""
        self._anchored = self._loop.call_later(ANCHOR_S, self._anchor)

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._anchored.cancel()
        with self._lock:
            self._is_left = True
        self._left()
        for report in list(self._owed):
            self._settle(report, None, _left_error())
        unwinding = [task for task in self._tasks if not task.done()]
        for task in unwinding:
            with suppress(RuntimeError):  # its loop is closed: it ends with this coroutine
                task.cancel()
        # Nothing can be awaited by a coroutine that is being closed.
        if unwinding and kind is not GeneratorExit:
            await asyncio.wait(unwinding, timeout=UNWIND_S)

    def run(self, call: Call, report: Report) -> None:
        """Start the call as a task of the caller's loop, or in a thread that is free for it."""
        call = getattr(call, "on_loop", call)  # the form for a loop, if a call has two
        with self._lock:
            is_left = self._is_left
            if not is_left:
                self._owed.add(report)
        if is_left:
            report(None, _left_error())
        elif not (_is_sync_function(call) and self._run_in_pool(call, report)):
            self._driver.later(
                self._loop,
                lambda: self._start(call, report),
                lambda: self._settle(report, None, _left_error()),
            )

    def _run_in_pool(self, call: Call, report: Report) -> bool:
        """Spare a sync call the way over the loop and back; False if it would have to wait."""

        def run() -> None:
            if self._is_left:
                return
            try:
                value = call()
                is_awaitable = inspect.isawaitable(value)  # asks the value, which may raise
            except BaseException as error:
                self._settle(report, None, error)
            else:
                if is_awaitable:
                    self._await_later(value, report)
                else:
                    self._settle(report, value, None)

        try:
            return self._pool.start_if_free(run, self._context.copy())
        except Exception as error:
            self._settle(report, None, error)
            return True

    def _await_later(self, value: Awaitable[Any], report: Report) -> None:
        try:
            self._loop.call_soon_threadsafe(self._start, partial(_awaited, value), report)
        except RuntimeError:  # the caller's loop is closed: nobody waits any more
            self._settle(report, None, _left_error())

    def wake(self) -> None:
        """Let the waiting task look; any thread."""
        try:
            self._loop.call_soon_threadsafe(self._woken.set)
        except RuntimeError:  # the caller's loop is closed: nobody waits any more
            return

    async def attend(self) -> None:
        """Wait for a wake-up."""
        await self._woken.wait()
        self._woken.clear()

    def _settle(self, report: Report, value: Any, error: BaseException | None) -> None:
        with self._lock:
            if report not in self._owed:
                return
            self._owed.discard(report)
        report(value, error)

    def _start(self, call: Call, report: Report) -> None:
        if self._is_left:
            return
        task = self._loop.create_task(self._run(call, report), context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, call: Call, report: Report) -> None:
        try:
            if is_async(call):
                value = await call()
            else:
                value = await self._pool.run(call)
                if inspect.isawaitable(value):
                    value = await value
        except asyncio.CancelledError as error:
            self._settle(report, None, error)
            raise
        except BaseException as error:
            self._settle(report, None, error)
        else:
            self._settle(report, value, None)


class WeakHost:
    """A substitute for a task's host where something outlives the task's loop.

    A loop closed before its tasks have ended drops them, and they end as garbage. Held by the
    scheduler they would not be; without any reference, a task might be collected while it still
    waits. So the loop holds the host, by a timer.
    """

    def __init__(self, host: Host) -> None:
        self._host = weakref.ref(host)

    def run(self, call: Call, report: Report) -> None:
        """Let the host run the call, if its task is still there."""
        host = self._host()
        if host is None:
            report(None, _left_error())
        else:
            host.run(call, report)

    def wake(self) -> None:
        """Wake the host, if its task is still there."""
        host = self._host()
        if host is not None:
            host.wake()


class PoolHost:
    """The host of a caller that does not wait here: the pool runs every call."""

    def __init__(self, pool: CallPool, woken: Callable[[], None]) -> None:
        self._pool = pool
        self._context = contextvars.copy_context()
        self._woken = woken

    def run(self, call: Call, report: Report) -> None:
        self._pool.submit(partial(_finish, call, report), self._context.copy())

    def wake(self) -> None:
        """Tell the holder of the handle."""
        self._woken()


def _is_sync_function(call: Call) -> bool:
    """Tell whether calling runs a plain function, without asking an object that may have code.

    The scheduler's thread, which wants to know, must run none of the user's.
    """
    function: Any = getattr(call, "func", call)
    while type(function) is partial:
        function = function.func
    if type(function) is MethodType:
        function = function.__func__
    if type(function) is FunctionType:
        return not inspect.iscoroutinefunction(function)
    return type(function) is BuiltinFunctionType


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def is_async(call: Call) -> bool:
    """Tell whether calling gives an awaitable at once, without work of its own."""
    function = getattr(call, "func", call)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
    )


def _finish(call: Call, report: Report, ended: Callable[[], None] = lambda: None) -> None:
    try:
        value = call()
        if inspect.isawaitable(value):
            # With a factory the loop does not become the thread's current one, the user's.
            with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
                value = runner.run(_awaited(value))
    except BaseException as error:
        ended()
        report(None, error)
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
    else:
        ended()
        report(value, None)


def _left_error() -> RequestCancelledError:
    return RequestCancelledError("the caller left before this could run")

"""Waiting for one primitive: in a thread that blocks, or in a task on the caller's own loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Literal, Protocol

from rag_accel.engine_api import EngineOutput, EngineRequest
from rag_accel.scheduler.driver.outcomes import Result
from rag_accel.scheduler.messages import NodeKey, Outcome

Signal = Literal["granted", "ended"]


class LeafClient(Protocol):
    """A receiver of the events of one primitive.

    ``granted`` and ``ended`` run on a thread of the scheduler's and must not block; ``request`` and
    ``partial`` run on the thread of the engine that takes the work.
    """

    def request(self, node: NodeKey) -> EngineRequest:
        """Build the work for an owned engine."""
        ...

    def granted(self, node: NodeKey) -> None:
        """Learn that the borrowed call may run now."""
        ...

    def partial(self, node: NodeKey, output: EngineOutput) -> bool | None:
        """Learn of an increment; False says that it was not seen, so the work may be repeated."""
        ...

    def ended(self, node: NodeKey, outcome: Outcome, result: Result | None, shared: bool) -> None:
        """Learn the outcome; ``shared`` says that another client got the same result object."""
        ...


class _Leaf:
    """State that blocking and awaiting leaves have in common."""

    __slots__ = ("build", "outcome", "result", "shared", "signal")

    def __init__(self, build: Callable[[NodeKey], EngineRequest] | None) -> None:
        self.build = build
        self.signal: Signal | None = None
        self.outcome: Outcome | None = None
        self.result: Result | None = None
        self.shared = False

    def request(self, node: NodeKey) -> EngineRequest:
        """Build the work; only leaves of owned engines are asked."""
        assert self.build is not None, "a borrowed leaf was asked for engine work"
        return self.build(node)

    def partial(self, node: NodeKey, output: EngineOutput) -> None:
        """Ignore increments: this caller waits for the whole."""

    def granted(self, node: NodeKey) -> None:
        """Wake the caller, which then runs the call."""
        if self.signal is None:
            self.signal = "granted"
            self._wake()

    def ended(self, node: NodeKey, outcome: Outcome, result: Result | None, shared: bool) -> None:
        """Wake the caller with the outcome, unless it is already running the call."""
        if self.signal is None:
            self.signal = "ended"
            self.outcome, self.result, self.shared = outcome, result, shared
            self._wake()

    def _wake(self) -> None:
        raise NotImplementedError


class SyncLeaf(_Leaf):
    """A leaf whose calling thread blocks until the primitive may run or has ended."""

    __slots__ = ("_lock",)

    def __init__(self, build: Callable[[NodeKey], EngineRequest] | None = None) -> None:
        super().__init__(build)
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self, timeout_s: float = -1) -> bool:
        """Return once ``signal`` is set, or False after a time; Ctrl-C interrupts."""
        return self._lock.acquire(timeout=timeout_s)

    def _wake(self) -> None:
        self._lock.release()


class AsyncLeaf(_Leaf):
    """A leaf whose task is suspended until the primitive may run or has ended.

    Args:
        later: runs a call on a loop, or another one if that loop is closed.
        build: builds the work; only for owned engines.
        lost: called in place of waking a task whose loop is closed.
    """

    __slots__ = ("_future", "_later", "_lost", "loop")

    def __init__(
        self,
        later: Callable[
            [asyncio.AbstractEventLoop, Callable[[], None], Callable[[], None] | None], None
        ],
        build: Callable[[NodeKey], EngineRequest] | None = None,
        lost: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(build)
        self.loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self.loop.create_future()
        self._later = later
        self._lost = lost

    async def wait(self) -> None:
        """Return once ``signal`` is set; cancelling the task raises CancelledError here."""
        await self._future

    def _wake(self) -> None:
        self._later(self.loop, self._resolve, self._lost)

    def _resolve(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


class KeptLeaf(_Leaf):
    """A leaf that any number of threads and tasks may wait for."""

    __slots__ = ("_over",)

    def __init__(self, build: Callable[[NodeKey], EngineRequest] | None = None) -> None:
        super().__init__(build)
        self._over: Future[None] = Future()

    @property
    def is_over(self) -> bool:
        """Tell whether the outcome is known."""
        return self._over.done()

    def wait(self) -> None:
        """Return once the outcome is known; Ctrl-C interrupts."""
        self._over.result()

    async def wait_on_loop(self) -> None:
        """Do as ``wait`` without blocking the loop; cancelling the task ends only its wait."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        self._over.add_done_callback(lambda _: _tell(loop, waiting))
        await waiting

    def _wake(self) -> None:
        self._over.set_result(None)


def _tell(loop: asyncio.AbstractEventLoop, waiting: asyncio.Future[None]) -> None:
    def resolve() -> None:
        if not waiting.done():
            waiting.set_result(None)

    with suppress(RuntimeError):  # the loop is closed: its tasks wait no more
        loop.call_soon_threadsafe(resolve)

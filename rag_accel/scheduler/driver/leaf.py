"""Wait for one primitive: in a thread that blocks, or in a task on the caller's own loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Literal, Protocol

from rag_accel.engine_api import EngineOutput, EngineRequest
from rag_accel.scheduler.driver.outcome import Result
from rag_accel.scheduler.messages import NodeKey, Outcome

Signal = Literal["granted", "ended"]


class LeafClient(Protocol):
    """Be told about one primitive.

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
        """Learn of an increment; False says that nobody saw it, so the work may be repeated."""
        ...

    def ended(self, node: NodeKey, outcome: Outcome, result: Result | None, shared: bool) -> None:
        """Learn the outcome; ``shared`` says that somebody else got the same result object."""
        ...


class _Leaf:
    """Hold what both kinds of waiting share."""

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
        """Wake the caller, who then runs the call."""
        if self.signal is None:
            self.signal = "granted"
            self._wake()

    def ended(self, node: NodeKey, outcome: Outcome, result: Result | None, shared: bool) -> None:
        """Wake the caller with the outcome, unless he is already running the call himself."""
        if self.signal is None:
            self.signal = "ended"
            self.outcome, self.result, self.shared = outcome, result, shared
            self._wake()

    def _wake(self) -> None:
        raise NotImplementedError


class SyncLeaf(_Leaf):
    """Block the calling thread until the primitive may run or has ended."""

    __slots__ = ("_lock",)

    def __init__(self, build: Callable[[NodeKey], EngineRequest] | None = None) -> None:
        super().__init__(build)
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self) -> None:
        """Return once ``signal`` is set; Ctrl-C interrupts."""
        self._lock.acquire()

    def _wake(self) -> None:
        self._lock.release()


class AsyncLeaf(_Leaf):
    """Suspend a task of the running loop until the primitive may run or has ended.

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

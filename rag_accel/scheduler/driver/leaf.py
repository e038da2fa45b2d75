"""Waiting for single calls: what ended them, and which callers are to be woken."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rag_accel.engine_api import EngineOutput, EngineRequest, Handle
from rag_accel.errors import (
    BusyError,
    ClosedError,
    DeadlineError,
    EngineError,
    EngineLostError,
    RequestCancelledError,
)
from rag_accel.scheduler.messages import LeafArrived, NodeKey, NodeReport, Outcome

# Turn the core's outcomes into results and exceptions.


@dataclass(frozen=True, slots=True)
class Result:
    """What one primitive produced: a value, or the exception it raised."""

    value: Any = None
    error: BaseException | None = None
    handle: Handle | None = None


def late_result(retry_after_s: float, where: str) -> Result:
    """Return what a request is told that was refused because an engine would be late."""
    error = BusyError(
        "an embedder would answer later than it should",
        where=where,
        found=f"room in {retry_after_s:.3f} s",
        valid="texts that end within embedding_slo_s",
        hint="try again after retry_after_s, raise embedding_slo_s, or use on_full='wait'",
        retry_after_s=retry_after_s,
    )
    return Result(error=error)


def error_for(outcome: Outcome, result: Result | None, where: str) -> BaseException | None:
    """Return the exception that ``outcome`` means to the caller, or ``None`` for ``done``.

    A failure is the original exception object; everything else is one of ours.
    """
    if outcome == "done":
        return None
    if result is not None and result.error is not None:
        return result.error
    if outcome == "cancelled":
        return RequestCancelledError("the request was cancelled", where=where)
    if outcome == "deadline":
        return DeadlineError(
            "the request ran past its deadline",
            where=where,
            hint="raise deadline_s, or look at rag-accel doctor for a slow engine",
        )
    if outcome == "lost":
        return EngineLostError(
            "the engine did not come back from a step",
            where=where,
            hint="raise step_timeout_s if steps take that long; it is used again once it returns",
        )
    if outcome == "rejected":
        return BusyError(
            "the bound on live requests is reached",
            where=where,
            hint="try again later, raise max_requests, or use on_full='wait'",
        )
    if outcome == "closed":
        return ClosedError(
            "the accelerator is closed", where=where, hint="make a new one with Accelerator()"
        )
    return EngineError("the engine failed without saying why", where=where)


@dataclass(slots=True)
class StepOutcome:
    """Outputs of one step."""

    reports: list[NodeReport] = field(default_factory=list[NodeReport])
    results: dict[NodeKey, Result] = field(default_factory=dict[NodeKey, Result])
    #: engine-owned state that no client was told of
    unclaimed: list[Handle] = field(default_factory=list[Handle])

    def fail(self, node: NodeKey, error: BaseException) -> None:
        """Note that a member ended with an error."""
        self.results[node] = Result(error=error)
        self.reports.append(NodeReport(node, "error"))


# Waiting for one primitive: in a thread that blocks, or in a task on the caller's own loop.

Signal = Literal["granted", "ended"]


class LeafClient(Protocol):
    """A receiver of what happens to one primitive.

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
    """A leaf whose end any number of threads and tasks may wait for, or none."""

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


# Messages that several tasks of one loop send during one turn of that loop go out together.


class Gathered(threading.local):
    """Messages of one loop's tasks, held back until all tasks that can run now have run.

    Tasks that wake together would otherwise be parted by how much of them the driver's thread sees
    when it first gets to look.
    """

    def __init__(self, send: Callable[[tuple[LeafArrived, LeafClient]], None]) -> None:
        self._send = send
        #: the loop that was asked to hand over; without one nothing is kept
        self.loop: asyncio.AbstractEventLoop | None = None
        self._items: list[tuple[LeafArrived, LeafClient]] = []

    def add(self, event: LeafArrived, client: LeafClient) -> None:
        """Keep one; the first asks the loop to hand over after everybody's turn."""
        loop = asyncio.get_running_loop()
        if self.loop is not loop:
            self.flush()  # of a loop that ended before it came to that
            self.loop = loop
            loop.call_soon(self.flush)
        self._items.append((event, client))

    def flush(self) -> None:
        """Hand over what this thread keeps."""
        if self.loop is not None:
            items, self._items, self.loop = self._items, [], None
            for item in items:
                self._send(item)

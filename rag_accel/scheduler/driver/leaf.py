"""Waiting for one primitive, or for its text: in a thread, or in a task on the caller's loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Protocol

from rag_accel.clock import SIGNAL_S
from rag_accel.engine_api import EngineOutput, EngineRequest, WorkId
from rag_accel.scheduler.driver.outcomes import Result
from rag_accel.scheduler.messages import LeafArrived, NodeKey, Outcome

Signal = Literal["granted", "ended"]
Build = Callable[[NodeKey], EngineRequest]
Call = Callable[[], None]
Later = Callable[[asyncio.AbstractEventLoop, Call, Call | None], None]

#: Items that a stream buffers before further ones are merged.
STREAM_ITEMS = 256


@dataclass(frozen=True, slots=True)
class BegunWork:
    """Work that a speculation has begun, and that goes on as the work of a primitive.

    Args:
        request: the whole work, for an engine that does not have it any more.
        work: what the engine calls it.
        told: its increments so far.
        result: its result, if it has ended.
    """

    request: EngineRequest
    work: WorkId
    told: tuple[EngineOutput, ...] = ()
    result: Result | None = None


class LeafClient(Protocol):
    """A receiver of the events of one primitive.

    ``granted`` and ``ended`` run on a thread of the scheduler's and must not block; ``request`` and
    ``partial`` run on the thread of the engine that takes the work.
    """

    def request(self, node: NodeKey) -> EngineRequest | BegunWork:
        """Build the work for an owned engine."""
        ...

    def granted(self, node: NodeKey) -> None:
        """Learn that the borrowed call may run now."""
        ...

    def partial(self, node: NodeKey, output: EngineOutput) -> bool | None:
        """Learn of an increment; False says that it was not seen, so the work may be repeated.

        Also told are ``progress`` outputs, of work that asked for them.
        """
        ...

    def ended(self, node: NodeKey, outcome: Outcome, result: Result | None, shared: bool) -> None:
        """Learn the outcome; ``shared`` says that another client got the same result object."""
        ...


class _Leaf:
    """State that blocking and awaiting leaves have in common."""

    __slots__ = ("build", "outcome", "result", "shared", "signal")

    def __init__(self, build: Build | None) -> None:
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

    def __init__(self, build: Build | None = None) -> None:
        super().__init__(build)
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self, timeout_s: float = -1) -> bool:
        """Return once ``signal`` is set, or False after a time; Ctrl-C interrupts."""
        if timeout_s >= 0:
            return self._lock.acquire(timeout=timeout_s)
        while not self._lock.acquire(timeout=SIGNAL_S):
            pass
        return True

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
        later: Later,
        build: Build | None = None,
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

    def __init__(self, build: Build | None = None) -> None:
        super().__init__(build)
        self._over: Future[None] = Future()

    @property
    def is_over(self) -> bool:
        """Tell whether the outcome is known."""
        return self._over.done()

    def wait(self, timeout_s: float = -1) -> bool:
        """Return once the outcome is known, or False after a time; Ctrl-C interrupts."""
        while not self._over.done():
            with suppress(TimeoutError):
                self._over.result(SIGNAL_S if timeout_s < 0 else timeout_s)
            if timeout_s >= 0:
                break
        return self._over.done()

    async def wait_on_loop(self) -> None:
        """Do as ``wait`` without blocking the loop; cancelling the task ends only its wait."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        self._over.add_done_callback(lambda _: _tell(loop, waiting))
        await waiting

    def _wake(self) -> None:
        self._over.set_result(None)


class TextStream:
    """A text buffer between one producer and one consumer, bounded by merging.

    No text is lost and decoding never waits: past ``STREAM_ITEMS`` new text joins the last item.
    """

    def __init__(self) -> None:
        self._items: deque[str] = deque()
        self._lock = threading.Lock()

    def put(self, text: str) -> None:
        """Add text; any thread."""
        with self._lock:
            if len(self._items) >= STREAM_ITEMS:
                self._items[-1] += text
            else:
                self._items.append(text)

    def take(self) -> list[str]:
        """Take all that is buffered."""
        with self._lock:
            items = list(self._items)
            self._items.clear()
        return items


class SyncStreamLeaf(SyncLeaf):
    """A leaf whose calling thread takes text as it comes, until the primitive has ended."""

    __slots__ = ("_changed", "_text")

    def __init__(self, build: Build) -> None:
        super().__init__(build)
        self._text = TextStream()
        self._changed = threading.Condition()

    def partial(self, node: NodeKey, output: EngineOutput) -> None:
        self._text.put(output.value)
        self._wake()

    def take(self) -> list[str]:
        """Return the next text, in pieces; nothing once the primitive has ended and all is taken.

        Ctrl-C interrupts.
        """
        with self._changed:
            while True:
                has_ended = self.signal is not None
                pieces = self._text.take()
                if pieces or has_ended:
                    return pieces
                self._changed.wait(SIGNAL_S)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class AsyncStreamLeaf(AsyncLeaf):
    """A leaf whose task takes text as it comes, until the primitive has ended."""

    __slots__ = ("_changed", "_text")

    def __init__(
        self,
        later: Later,
        build: Build,
    ) -> None:
        super().__init__(later, build)
        self._text = TextStream()
        self._changed = asyncio.Event()

    def partial(self, node: NodeKey, output: EngineOutput) -> None:
        self._text.put(output.value)
        self._wake()

    async def take(self) -> list[str]:
        """Return the next text, in pieces; nothing once the primitive has ended and all is taken.

        Cancelling the task raises CancelledError here.
        """
        while True:
            self._changed.clear()
            has_ended = self.signal is not None
            pieces = self._text.take()
            if pieces or has_ended:
                return pieces
            await self._changed.wait()

    def _resolve(self) -> None:
        self._changed.set()


class Gathered(threading.local):
    """Leaves of one loop's tasks, held back until all tasks that can run now have run.

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
        """Send this thread's leaves."""
        if self.loop is not None:
            items, self._items, self.loop = self._items, [], None
            for item in items:
                self._send(item)


def _tell(loop: asyncio.AbstractEventLoop, waiting: asyncio.Future[None]) -> None:
    def resolve() -> None:
        if not waiting.done():
            waiting.set_result(None)

    with suppress(RuntimeError):  # the loop is closed: its tasks wait no more
        loop.call_soon_threadsafe(resolve)

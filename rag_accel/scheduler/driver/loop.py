"""Run the core on one thread: events in from anywhere, commands out to workers and callers."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import (
    BorrowedEngine,
    Engine,
    EngineOutput,
    EngineRequest,
    Handle,
    StepBudget,
)
from rag_accel.errors import ClosedError, ConfigError, ForkedError, SchedulingError
from rag_accel.scheduler.driver.leaf import LeafClient
from rag_accel.scheduler.driver.outcome import Result
from rag_accel.scheduler.driver.worker import EngineWorker
from rag_accel.scheduler.messages import (
    BorrowedEngineAdded,
    CallEnded,
    CancelWork,
    Closing,
    Command,
    EndNode,
    EndRequest,
    EngineName,
    Event,
    InterruptStep,
    LeafArrived,
    NodeKey,
    Outcome,
    OwnedEngineAdded,
    RequestArrived,
    RequestId,
    StartCall,
    StartStep,
    Tick,
    WakeAt,
)
from rag_accel.scheduler.state import CoreOptions, SchedulerState
from rag_accel.scheduler.transitions import handle

logger = logging.getLogger("rag_accel.scheduler")

Results = dict[NodeKey, Result]


class GraphClient(LeafClient, Protocol):
    """Be told about a whole request as well as about its primitives."""

    def request_ended(self, outcome: Outcome, node: NodeKey | None) -> None:
        """Learn that the request is over; ``node`` is the one that failed it."""
        ...


class Observer(Protocol):
    """See every event with the commands it led to, on the driver's thread."""

    def observe(
        self, event: Event, commands: list[Command], now: float, state: SchedulerState
    ) -> None:
        """Record; must neither block nor raise, nor change the state."""
        ...


def _trust(request: EngineRequest, output: EngineOutput) -> EngineOutput:
    return output


class Driver:
    """Own the scheduler's thread, its clock, and one worker per owned engine.

    Args:
        options: bounds of the core.
        clock: monotonic seconds.
        check: looks at each final output of an owned engine and may turn it into an error.
        observer: sees everything that happens.
    """

    def __init__(
        self,
        options: CoreOptions,
        *,
        clock: Clock | None = None,
        check: Callable[[EngineRequest, EngineOutput], EngineOutput] = _trust,
        observer: Observer | None = None,
    ) -> None:
        self._clock = clock or MonotonicClock()
        self._check = check
        self._observer = observer
        self._state = SchedulerState(options)
        self._mailbox: SimpleQueue[tuple[Event | None, Any]] = SimpleQueue()
        self._workers: dict[EngineName, EngineWorker] = {}
        self._names: set[EngineName] = set()
        self._names_lock = threading.Lock()
        self._leaves: dict[NodeKey, LeafClient] = {}
        self._graphs: dict[RequestId, GraphClient] = {}
        self._ids: Iterator[int] = count(1)
        self._wakeups: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
        self._pid = os.getpid()
        self._closing = threading.Event()
        #: errors of our own that were survived; zero unless there is a bug
        self.internal_errors = 0
        self._thread = threading.Thread(target=self._run, name="rag-accel-driver", daemon=True)
        self._thread.start()

    # Called from any thread ----------------------------------------------------------------

    def new_request(self) -> RequestId:
        """Return a fresh request id."""
        return RequestId(next(self._ids))

    def add_engine(self, name: str, engine: Engine) -> EngineName:
        """Take over an owned engine and start its worker.

        Raises:
            ConfigError: if the name is taken.
        """
        key = self._claim(name)
        worker = EngineWorker(key, engine, self._post_step, self._pass_partial, self._check)
        profile = engine.profile
        event = OwnedEngineAdded(
            key,
            profile.max_batch,
            profile.max_threads,
            profile.latency.base_s,
            profile.latency.per_item_s,
            profile.stepped,
            profile.interruptible,
        )
        self._post(event, worker)
        return key

    def add_borrowed(self, engine: BorrowedEngine) -> EngineName:
        """Let calls of a user's object be admitted under this name.

        Raises:
            ConfigError: if the name is taken.
        """
        key = self._claim(engine.name)
        self._post(BorrowedEngineAdded(key, engine.max_concurrency))
        return key

    def submit(self, event: LeafArrived | RequestArrived, client: LeafClient | GraphClient) -> None:
        """Bring in a leaf or a request; its client hears of it from now on."""
        self._post(event, client)

    def post(self, event: Event) -> None:
        """Tell the core that something happened."""
        self._post(event)

    def report_call(self, event: CallEnded, result: Result) -> None:
        """Tell the core that a borrowed call of a graph has ended, and hand over its result."""
        self._post(event, {event.node: result})

    def release(self, engine: EngineName, handles: tuple[Handle, ...]) -> None:
        """Let an owned engine free its handles."""
        worker = self._workers.get(engine)
        if worker is not None:
            worker.release(handles)

    def later(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        """Run ``call`` on a caller's loop; one wake-up per loop and event. Driver thread only."""
        self._wakeups.setdefault(loop, []).append(call)

    def now(self) -> float:
        """Return the driver's clock in seconds."""
        return self._clock.now()

    @property
    def closed(self) -> bool:
        """Tell whether ``close`` was called."""
        return self._closing.is_set()

    def close(self, timeout_s: float) -> bool:
        """End every request with ClosedError, stop all threads; tell whether they all ended.

        In a forked child, where none of the threads exists, this does nothing.
        """
        if os.getpid() != self._pid:
            return True
        if not self._closing.is_set():
            self._closing.set()
            self._mailbox.put((Closing(), None))
            self._mailbox.put((None, None))
        if threading.current_thread() is self._thread:
            return False
        until = self._clock.now() + timeout_s
        self._thread.join(timeout_s)
        ended = not self._thread.is_alive()
        for worker in self._workers.values():
            ended = worker.join(max(0.0, until - self._clock.now())) and ended
        return ended

    def _claim(self, name: str) -> EngineName:
        key = EngineName(name)
        with self._names_lock:
            if key in self._names:
                raise ConfigError(
                    "an engine name was used twice",
                    where=name,
                    valid="a name not among " + ", ".join(sorted(self._names)),
                )
            self._names.add(key)
        return key

    def _post(self, event: Event, attached: Any = None) -> None:
        if os.getpid() != self._pid:
            raise ForkedError(
                "an accelerator made before fork() was used in the child",
                found=f"process {os.getpid()}",
                valid=f"process {self._pid}",
                hint="make the Accelerator in the child, or use the process default",
            )
        if self._closing.is_set() and isinstance(event, LeafArrived | RequestArrived):
            raise ClosedError("the accelerator is closed", hint="make a new one")
        self._mailbox.put((event, attached))

    def _post_step(self, event: Any, results: Results) -> None:
        self._mailbox.put((event, results))

    def _pass_partial(self, node: NodeKey, output: EngineOutput) -> None:
        client = self._leaves.get(node) or self._graphs.get(node.request)
        if client is not None:
            client.partial(node, output)

    # Driver thread only --------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            event, attached = self._next()
            if event is None:
                break
            try:
                self._apply(event, attached)
            except Exception as error:
                self._survive(event, attached, error)
            self._flush_wakeups()
            del event, attached
        for worker in self._workers.values():
            worker.stop()

    def _next(self) -> tuple[Event | None, Any]:
        wake_at = self._state.wake_at
        if wake_at is None:
            return self._mailbox.get()
        try:
            return self._mailbox.get(timeout=max(0.0, wake_at - self._clock.now()))
        except Empty:
            return Tick(), None

    def _apply(self, event: Event, attached: Any) -> None:
        results: Results = {}
        if isinstance(event, LeafArrived):
            self._leaves[NodeKey(event.request, event.node.name)] = attached
        elif isinstance(event, RequestArrived):
            self._graphs[event.request] = attached
        elif isinstance(event, OwnedEngineAdded):
            self._workers[event.engine] = attached
        elif attached is not None:
            results = attached
        now = self._clock.now()
        commands = handle(self._state, event, now)
        if self._observer is not None:
            self._observer.observe(event, commands, now, self._state)
        for command in commands:
            _EXECUTE[type(command)](self, command, results)

    def _survive(self, event: Event, attached: Any, error: Exception) -> None:
        """Keep running after an error of our own: its request fails, nobody else's does."""
        self.internal_errors += 1
        logger.exception("the scheduler failed on %s", type(event).__name__)
        wrapped = SchedulingError("the scheduler failed", where=type(event).__name__, found=error)
        wrapped.__cause__ = error
        if isinstance(event, LeafArrived):
            key = NodeKey(event.request, event.node.name)
            if (client := self._leaves.pop(key, None)) is not None:
                client.ended(key, "failed", Result(error=wrapped), False)
        elif isinstance(event, RequestArrived):
            graph = self._graphs.pop(event.request, None)
            if graph is not None:
                graph.request_ended("failed", None)

    def _start_step(self, command: StartStep, results: Results) -> None:
        work: dict[NodeKey, EngineRequest] = {}
        spoiled: dict[NodeKey, BaseException] = {}
        for node in command.admitted:
            client = self._leaves.get(node) or self._graphs[node.request]
            try:
                work[node] = client.request(node)
            except Exception as error:
                spoiled[node] = error
        budget = StepBudget(command.time_s, command.threads)
        self._workers[command.engine].start(command.step, work, spoiled, budget)

    def _start_call(self, command: StartCall, results: Results) -> None:
        node = command.node
        (self._leaves.get(node) or self._graphs[node.request]).granted(node)

    def _end_node(self, command: EndNode, results: Results) -> None:
        node = command.node
        client = self._leaves.pop(node, None) or self._graphs.get(node.request)
        if client is not None:
            result = results.get(command.leader or node)
            client.ended(node, command.outcome, result, command.leader is not None)

    def _end_request(self, command: EndRequest, results: Results) -> None:
        client = self._graphs.pop(command.request, None)
        if client is not None:
            client.request_ended(command.outcome, command.node)

    def _cancel_work(self, command: CancelWork, results: Results) -> None:
        self._workers[command.engine].cancel(command.nodes)

    def _interrupt_step(self, command: InterruptStep, results: Results) -> None:
        self._workers[command.engine].interrupt()

    def _wake_at(self, command: WakeAt, results: Results) -> None:
        """Do nothing: ``_next`` reads the time from the state."""

    def _flush_wakeups(self) -> None:
        if not self._wakeups:
            return
        wakeups, self._wakeups = self._wakeups, {}
        for loop, calls in wakeups.items():
            try:
                loop.call_soon_threadsafe(_run_all, calls)
            except RuntimeError:
                logger.debug("a caller's loop was closed before its result arrived")


def _run_all(calls: list[Callable[[], None]]) -> None:
    for call in calls:
        call()


_EXECUTE: dict[type, Callable[[Driver, Any, Results], None]] = {
    StartStep: Driver._start_step,  # pyright: ignore[reportPrivateUsage]
    StartCall: Driver._start_call,  # pyright: ignore[reportPrivateUsage]
    EndNode: Driver._end_node,  # pyright: ignore[reportPrivateUsage]
    EndRequest: Driver._end_request,  # pyright: ignore[reportPrivateUsage]
    CancelWork: Driver._cancel_work,  # pyright: ignore[reportPrivateUsage]
    InterruptStep: Driver._interrupt_step,  # pyright: ignore[reportPrivateUsage]
    WakeAt: Driver._wake_at,  # pyright: ignore[reportPrivateUsage]
}

"""Event handling: events to the core, its commands carried out, a fresh start after bugs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from rag_accel.clock import Clock
from rag_accel.engine_api import AdmittingEngine, Health, ReportingEngine
from rag_accel.errors import SchedulingError
from rag_accel.scheduler.arrivals import engines_of_new
from rag_accel.scheduler.commands import Command, DropEngine
from rag_accel.scheduler.driver.delivery import CARRY_OUT, Clients, Delivery, Results
from rag_accel.scheduler.driver.worker import EngineWorker
from rag_accel.scheduler.messages import (
    BorrowedEngineAdded,
    CallEnded,
    Closing,
    EarlyArrived,
    EngineLeft,
    EngineName,
    Event,
    LeafArrived,
    NodeKey,
    OwnedEngineAdded,
    Reported,
    RequestArrived,
    RequestClosed,
    RequestOpened,
    StepEnded,
    StepFailed,
    Tick,
)
from rag_accel.scheduler.state import CoreOptions, EngineState, SchedulerState
from rag_accel.scheduler.transitions import handle

logger = logging.getLogger("rag_accel.scheduler")

Call = Callable[[], None]


class LoopWakeups:
    """Calls gathered by event loop until ``flush``, so that an event wakes each loop only once.

    Used by one thread at a time.
    """

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls: dict[asyncio.AbstractEventLoop, list[tuple[Call, Call | None]]] = {}

    def add(self, loop: asyncio.AbstractEventLoop, call: Call, lost: Call | None = None) -> None:
        """Run ``call`` on a loop at the next ``flush``; ``lost`` here if that loop is closed."""
        self.calls.setdefault(loop, []).append((call, lost))

    def flush(self) -> None:
        """Hand the gathered calls to their loops."""
        gathered, self.calls = self.calls, {}
        for loop, calls in gathered.items():
            try:
                loop.call_soon_threadsafe(_run_all, [call for call, _ in calls])
            except RuntimeError:
                logger.debug("a caller's loop was closed before its result arrived")
                _run_all([lost for _, lost in calls if lost is not None])


def _run_all(calls: list[Call]) -> None:
    for call in calls:
        call()


#: events that are taken in together before anything is started for them
MAX_TOGETHER = 64

_NONE: Results = {}
#: events that bring nothing along
_BARE = (Reported, RequestOpened, RequestClosed)


class Observer(Protocol):
    """A receiver of every event with the commands it led to, before they are carried out."""

    def observe(
        self, event: Event, commands: list[Command], now: float, state: SchedulerState
    ) -> None:
        """Record; must neither block nor change the state."""
        ...


class EventHandler:
    """The core's state with the clients and the workers; used by the thread that has the turn.

    An error of our own, in the core or in carrying out a command, makes the state worthless: every
    client is told of it, and the engines go on in a fresh state in which nothing lives.

    Attributes:
        internal_errors: errors of our own so far; zero unless there is a bug.
    """

    def __init__(self, options: CoreOptions, clock: Clock, observer: Observer | None) -> None:
        self.state = SchedulerState(options)
        self.clients = Clients()
        self.workers: dict[EngineName, EngineWorker] = {}
        self.wakeups = LoopWakeups()
        self.internal_errors = 0
        #: events in a row that have started nothing yet
        self._put_off = 0
        #: borrowed calls that were let in and whose end was not reported
        self._granted: dict[NodeKey, EngineName] = {}
        #: steps up to this one were started by a state that is gone
        self._last_dropped = 0
        self._clock = clock
        self._observer = observer

    @property
    def is_idle(self) -> bool:
        """Tell whether nothing lives: no request, no queue, no running step, no client."""
        stepping = any(engine.step is not None for engine in self.state.owned.values())
        owing = any(worker.owes_cancels for worker in self.workers.values())
        return self.state.is_empty() and not stepping and not owing and not self.clients

    def health(self) -> tuple[Health, ...]:
        """Return the health of every owned engine, by name."""
        engines = sorted(self.state.owned.values(), key=lambda engine: engine.name)
        return tuple(self._health_of(engine) for engine in engines)

    def queues(self) -> dict[str, tuple[int, int]]:
        """Return of every engine how many works wait for it, and how many it has."""
        engines = self.state.engines.items()
        return {name: (len(engine.queue), len(engine.running)) for name, engine in engines}

    def _health_of(self, engine: EngineState) -> Health:
        if engine.lost:
            return Health(engine.name, "lost", "a step did not end within step_timeout_s")
        worker = self.workers.get(engine.name)
        if worker is None or not isinstance(worker.engine, ReportingEngine):
            return Health(engine.name)
        return replace(worker.engine.health(), name=engine.name)

    def handle(self, event: Event, attached: Any, more: bool = False) -> None:
        """Take in one event with what belongs to it, and do all that follows from it.

        With ``more`` to come at once, what it lets start is put off; but not for ever.
        """
        event = _with_refusal(self.state, event, self.workers)
        self._put_off = self._put_off + 1 if more and self._put_off < MAX_TOGETHER else 0
        try:
            results = _NONE if isinstance(event, _BARE) else self.take_in(event, attached)
            if isinstance(event, StepEnded | StepFailed) and event.step <= self._last_dropped:
                self._release_unclaimed(event.engine, results)
                event, results = Tick(), _NONE  # what was put off starts all the same
            self._apply(event, results, more=self._put_off > 0)
        except Exception as error:
            self._start_over(event, error)
        if self.wakeups.calls and not self._put_off:
            self.wakeups.flush()

    def catch_up(self) -> None:
        """Start work that was put off for further events."""
        if self._put_off:
            self.handle(Tick(), None)

    def take_in(self, event: Event, attached: Any) -> Results:
        """Keep an event's attachment; return the results in it."""
        if isinstance(event, CallEnded):
            self._granted.pop(event.node, None)
            return attached or {}
        if isinstance(event, StepEnded | StepFailed):
            return attached
        if isinstance(event, LeafArrived):
            self.clients.add_leaf(event, attached)
        elif isinstance(event, EarlyArrived):
            self.clients.add_early(event, attached)
        elif isinstance(event, RequestArrived):
            self.clients.add_graph(event, attached)
        elif isinstance(event, OwnedEngineAdded):
            self.workers[event.engine] = attached
        return {}

    def close(self) -> None:
        """Tell all clients that are left that it is over, and stop the workers; may be repeated."""
        self.clients.close()
        self.wakeups.flush()
        for worker in self.workers.values():
            worker.stop()

    def _apply(self, event: Event, results: Results, more: bool = False) -> None:
        now = self._clock.now()
        delivery: Delivery | None = None
        failure: Exception | None = None
        try:
            commands = handle(self.state, event, now, more=more)
            self._observe(event, commands, now)
            if commands:
                delivery = Delivery(self.clients, self.workers, self._granted, results, commands)
                # All of them: what the core has decided on before an error still holds.
                for command in commands:
                    try:
                        CARRY_OUT[type(command)](delivery, command)
                    except Exception as error:
                        failure = failure or error
            if failure is not None:
                raise failure
        finally:
            if isinstance(event, StepEnded):
                claimed = delivery.claimed if delivery is not None else frozenset[NodeKey]()
                self._release_unclaimed(event.engine, results, claimed)

    def _observe(self, event: Event, commands: list[Command], now: float) -> None:
        if self._observer is None:
            return
        try:
            self._observer.observe(event, commands, now, self.state)
        except Exception:
            self.internal_errors += 1
            logger.exception("the scheduler's observer failed on %s", type(event).__name__)

    def _release_unclaimed(
        self, engine: EngineName, results: Results, claimed: Collection[NodeKey] = ()
    ) -> None:
        """Free the engine's state of results that no client answers for."""
        handles = tuple(
            result.handle
            for node, result in results.items()
            if result.handle is not None and node not in claimed
        )
        if handles and engine in self.workers:
            self.workers[engine].release(handles)

    def _start_over(self, event: Event, error: Exception) -> None:
        """End all that lives with an error, and go on in a fresh state with the same engines."""
        self.internal_errors += 1
        where = type(event).__name__
        logger.error("the scheduler failed on %s", where, exc_info=error)
        wrapped = SchedulingError("the scheduler failed", where=where, found=error)
        wrapped.__cause__ = error
        self._last_dropped = self.state.steps
        self.state = self.state.renewed(self._granted)
        for worker in self.workers.values():
            worker.forget_all()
        if isinstance(event, Closing):
            self.state.closed = True
            self.clients.close()
        else:
            self._observe(Tick(), self.clients.fail_all(wrapped), self._clock.now())
        self._rejoin(event)

    def _rejoin(self, event: Event) -> None:
        """Pass an event about engines to the fresh state; stop workers that it lacks."""
        is_known = getattr(event, "engine", None) in self.state.engines
        is_new = isinstance(event, OwnedEngineAdded | BorrowedEngineAdded) and not is_known
        # Whatever the event, engines that were about to leave may do so now.
        again = event if is_new or isinstance(event, EngineLeft) else Tick()
        try:
            self._apply(again, _NONE)
        except Exception:
            logger.exception("the scheduler could not start over with %s", type(again).__name__)
        gone = [DropEngine(name) for name in self.workers if name not in self.state.engines]
        for command in gone:
            self.workers.pop(command.engine).stop()
        self._observe(Tick(), [*gone], self._clock.now())


def _with_refusal(
    state: SchedulerState, event: Event, workers: Mapping[EngineName, EngineWorker]
) -> Event:
    """Return the event; one that asks for admission says when to come again if refused."""
    if not isinstance(event, LeafArrived | RequestArrived) or event.on_full != "raise":
        return event
    again_s = 0.0
    for name in engines_of_new(state, event):
        engine = workers[name].engine if name in workers else None
        if isinstance(engine, AdmittingEngine):
            again_s = max(again_s, _retry_after_s(engine, state, event))
    return replace(event, retry_after_s=again_s) if again_s > 0 else event


def _retry_after_s(
    engine: AdmittingEngine, state: SchedulerState, event: LeafArrived | RequestArrived
) -> float:
    try:
        live = {str(request) for request in state.requests}
        return engine.retry_after_s(str(event.request), live)
    except Exception:  # who cannot tell refuses nobody
        logger.exception("an engine failed to say whether a request would be late")
        return 0.0

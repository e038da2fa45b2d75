"""Apply events to the core and carry out what it decides; survive errors of our own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from rag_accel.clock import Clock
from rag_accel.errors import SchedulingError
from rag_accel.scheduler.commands import Command
from rag_accel.scheduler.driver.delivery import CARRY_OUT, Clients, Delivery, Results
from rag_accel.scheduler.driver.recovery import (
    concerned,
    lost_commands,
    lost_permits,
    overdue,
    repairs,
    stuck,
    unstarted,
)
from rag_accel.scheduler.driver.worker import EngineWorker
from rag_accel.scheduler.messages import (
    CallEnded,
    CallMade,
    EngineName,
    Event,
    LeafArrived,
    NodeCancelled,
    NodeKey,
    OwnedEngineAdded,
    RequestArrived,
    RequestCancelled,
    RequestClosed,
    RequestOpened,
    StepEnded,
    StepFailed,
    Tick,
)
from rag_accel.scheduler.state import CoreOptions, SchedulerState
from rag_accel.scheduler.transitions import handle

# Wake callers on their own loops: once per loop and event, however many of its tasks wait.

logger = logging.getLogger("rag_accel.scheduler")

Call = Callable[[], None]


class LoopWakeups:
    """Calls gathered by event loop until ``flush``. Used by one thread at a time."""

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

A = TypeVar("A")
B = TypeVar("B")

_NONE: Results = {}
#: events that bring nothing along
_BARE = (CallMade, RequestOpened, RequestClosed)


class Observer(Protocol):
    """A receiver of every event with the commands it led to, before they are carried out."""

    def observe(
        self, event: Event, commands: list[Command], now: float, state: SchedulerState
    ) -> None:
        """Record; must neither block nor change the state."""
        ...


class EventHandler:
    """Own the core's state, the clients and the workers. For whoever has the turn.

    Attributes:
        internal_errors: errors of our own that were survived; zero unless there is a bug.
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
        self._granted: set[NodeKey] = set()
        self._clock = clock
        self._observer = observer

    @property
    def is_idle(self) -> bool:
        """Tell whether nothing lives: no request, no queue, no running step, nobody who waits."""
        stepping = any(engine.step is not None for engine in self.state.owned.values())
        owing = any(worker.owes_cancels for worker in self.workers.values())
        return self.state.is_empty() and not stepping and not owing and not self.clients

    def handle(self, event: Event, attached: Any, more: bool = False) -> None:
        """Take in one event with what belongs to it, and do all that follows from it.

        With ``more`` to come at once, what it lets start is put off; but not for ever.
        """
        self._put_off = self._put_off + 1 if more and self._put_off < MAX_TOGETHER else 0
        try:
            results = _NONE if isinstance(event, _BARE) else self.take_in(event, attached)
            self._apply(event, results, more=self._put_off > 0)
        except Exception as error:
            members = attached if isinstance(event, StepEnded | StepFailed) else ()
            self._survive(event, members, error)
        if self.wakeups.calls and not self._put_off:
            self.wakeups.flush()

    def catch_up(self) -> None:
        """Start what was put off for events that were still to come."""
        if self._put_off:
            self.handle(Tick(), None)

    def take_in(self, event: Event, attached: Any) -> Results:
        """Remember what an event brought along; return the results among it."""
        if isinstance(event, CallEnded):
            self._granted.discard(event.node)
            return attached or {}
        if isinstance(event, StepEnded | StepFailed):
            self.workers[event.engine].given.difference_update(attached)
            return attached
        if isinstance(event, LeafArrived):
            self.clients.add_leaf(event, attached)
        elif isinstance(event, RequestArrived):
            self.clients.add_graph(event, attached)
        elif isinstance(event, OwnedEngineAdded):
            self.workers[event.engine] = attached
        return {}

    def close(self) -> None:
        """Tell everybody who is left that it is over, and stop the workers; may be repeated."""
        self.clients.close()
        self.wakeups.flush()
        for worker in self.workers.values():
            worker.stop()

    def _apply(self, event: Event, results: Results, more: bool = False) -> None:
        now = self._clock.now()
        commands = handle(self.state, event, now, more=more)
        if self._observer is not None:
            try:
                self._observer.observe(event, commands, now, self.state)
            except Exception:
                self.internal_errors += 1
                logger.exception("the scheduler's observer failed on %s", type(event).__name__)
        if not commands and not isinstance(event, StepEnded):
            return
        delivery = Delivery(self.clients, self.workers, self._granted, results, commands)
        failed: list[tuple[Command, Exception]] | None = None
        for command in commands:
            try:
                CARRY_OUT[type(command)](delivery, command)
            except Exception as error:
                failed = [*(failed or ()), (command, error)]
        # Only now: what is not carried out yet must not look as if it had been lost.
        for command, error in failed or ():
            self._survive(command, (), error)
        if isinstance(event, StepEnded) and event.engine in self.workers:
            delivery.release_unclaimed(self.workers[event.engine])

    def _survive(self, what: Event | Command, members: Iterable[NodeKey], error: Exception) -> None:
        """Keep running after an error of our own: whom it concerns fails, nobody else does."""
        self.internal_errors += 1
        logger.error("the scheduler failed on %s", type(what).__name__, exc_info=error)
        wrapped = SchedulingError("the scheduler failed", where=type(what).__name__, found=error)
        wrapped.__cause__ = error
        for node in concerned(what, members):
            self._give_up(node, wrapped)
        for event in repairs(what, self.state):
            self._repair(event)
        self._reconcile(wrapped)

    def _reconcile(self, error: SchedulingError) -> None:
        for node in (*unstarted(self.state, self.workers), *stuck(self.state)):
            self._give_up(node, error)
        for request in overdue(self.state):
            _attempt(self.clients.fail, NodeKey(request, ""), error)
            self._repair(RequestCancelled(request))
        for event in lost_permits(self.state, self._granted):
            self._repair(event)
        # Nothing may have been started for what changed before the error.
        self._repair(Tick())
        delivery = Delivery(self.clients, self.workers, self._granted, {}, [])
        for command in lost_commands(self.state, self.workers, self._granted):
            _attempt(CARRY_OUT[type(command)], delivery, command)
        for node in self.clients.strays(self.state):
            _attempt(self.clients.fail, node, error)

    def _give_up(self, node: NodeKey, error: SchedulingError) -> None:
        graph = self.clients.is_graph(node.request)
        _attempt(self.clients.fail, node, error)
        self._repair(RequestCancelled(node.request) if graph else NodeCancelled(node))

    def _repair(self, event: Event) -> None:
        _attempt(self._apply, event, Results())


def _attempt(action: Callable[[A, B], None], first: A, second: B) -> None:
    """Do a part of a recovery; the other parts must happen even if this one fails as well."""
    try:
        action(first, second)
    except Exception:
        logger.exception("the scheduler could not recover with %s", type(first).__name__)

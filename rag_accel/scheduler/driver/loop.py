"""The core on one thread at a time: events in from anywhere, commands out."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeVar, cast

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import (
    BorrowedEngine,
    Capability,
    Engine,
    EngineOutput,
    EngineProfile,
    Handle,
    Health,
)
from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.errors import ClosedError, ConfigError, ForkedError
from rag_accel.scheduler.driver.begun_calls import BegunCall, BegunCalls
from rag_accel.scheduler.driver.delivery import Clients, GraphClient
from rag_accel.scheduler.driver.ending import LivingThreads, join
from rag_accel.scheduler.driver.handling import EventHandler, Observer
from rag_accel.scheduler.driver.hints import HintedEngines
from rag_accel.scheduler.driver.leaf import Gathered, LeafClient
from rag_accel.scheduler.driver.outcomes import Result
from rag_accel.scheduler.driver.turns import Turns
from rag_accel.scheduler.driver.worker import Check, EngineWorker
from rag_accel.scheduler.messages import (
    BorrowedEngineAdded,
    CallEnded,
    Closing,
    EarlyArrived,
    EngineName,
    Event,
    LeafArrived,
    NodeKey,
    NodeReport,
    OwnedEngineAdded,
    ProgramBegan,
    ProgramEnded,
    ProgramLeft,
    RequestArrived,
    RequestClosed,
    RequestId,
    RequestOpened,
    StepEnded,
    StepFailed,
)
from rag_accel.scheduler.state import MAX_PROGRAMS, CoreOptions
from rag_accel.system.forks import forks

T = TypeVar("T")


class EngineNames:
    """The engine names in use. Thread-safe."""

    def __init__(self) -> None:
        self._names: set[EngineName] = set()
        self._lock = threading.Lock()

    def claim(self, name: str) -> EngineName:
        """Take a name; ConfigError if another engine has it."""
        key = EngineName(name)
        with self._lock:
            if key in self._names:
                raise ConfigError(
                    "an engine name was used twice",
                    where=name,
                    valid="a name not among " + ", ".join(sorted(self._names)),
                )
            self._names.add(key)
        return key

    def give_back(self, name: EngineName) -> None:
        """Let the name be taken again."""
        with self._lock:
            self._names.discard(name)


class Driver:
    """The scheduler at work: its core, its thread, its clock, and one worker per owned engine.

    Public methods may be called from any thread.

    Args:
        check: looks at each final output of an owned engine and may turn it into an error.
        observer: sees everything that happens.
        hint_failed: told of an engine whose hint raised, on the thread that gave it.
    """

    def __init__(
        self,
        options: CoreOptions,
        *,
        clock: Clock | None = None,
        check: Check = lambda request, output: output,
        observer: Observer | None = None,
        hint_failed: Callable[[EngineName | None], None] = lambda name: None,
    ) -> None:
        self._clock = clock or MonotonicClock()
        #: of engines that join from now on
        self.check = check
        self._handler = EventHandler(options, self._clock, observer)
        self._turns = Turns(self._handler, self._clock)
        self._calls = BegunCalls(self._clock.now, self._turns.mailbox)
        self._names = EngineNames()
        #: false while no engine makes use of hints
        self.hinted = HintedEngines(hint_failed)
        self._unlimited: set[EngineName] = set()
        #: programs that have brought a leaf which waited, or which an engine computed
        self._leading: set[str] = set()
        #: of all workers, also of those whose engine has left and which still close it
        self._worker_threads = LivingThreads()
        self._ids = cast("Iterator[RequestId]", count(1))
        self._pid = os.getpid()
        self._forks = forks.number
        self._closing = False
        self._gathered = Gathered(self._turns.post)
        self._thread = threading.Thread(
            target=self._turns.run, name="rag-accel-driver", daemon=True
        )
        self._thread.start()

    def new_request(self) -> RequestId:
        """Return a fresh request id; ForkedError in a forked child."""
        if forks.number != self._forks:
            self._require_own_process()
        return next(self._ids)

    def add_engine(self, name: str, engine: Engine) -> EngineName:
        """Take over an owned engine and start its worker.

        Raises:
            ConfigError: if the name is taken, or the engine takes no work at all.
            ClosedError: after ``close``.
            ForkedError: in a forked child.
        """
        self._require_usable()
        profile = engine.profile
        if profile.max_batch < 1:
            raise ConfigError(
                "an engine takes no work", where=name, found=profile.max_batch, valid="from 1"
            )
        key = self._names.claim(name)
        worker = EngineWorker(
            key, engine, self._report_step, self._pass_partial, self.check, self._engine_ended
        )
        self._worker_threads.add(worker.thread)
        self._put(_owned_engine_added(key, profile), worker)
        self.hinted.join(key, engine)
        return key

    def add_borrowed(self, engine: BorrowedEngine) -> EngineName:
        """Let calls of a user's object be admitted under this name.

        Raises:
            ConfigError: if the name is taken, or no call at all would be let in.
            ForkedError: in a forked child.
        """
        self._require_own_process()
        limit = engine.max_concurrency
        if limit is not None and limit < 1:
            raise ConfigError(
                "an engine lets no call in", where=engine.name, found=limit, valid="from 1"
            )
        key = self._names.claim(engine.name)
        self._put(BorrowedEngineAdded(key, limit))
        if limit is None:
            self._unlimited.add(key)
        return key

    def submit(self, event: LeafArrived | RequestArrived, client: LeafClient | GraphClient) -> None:
        """Bring in a leaf or a request; its client hears of it from now on.

        Raises:
            ClosedError: after ``close``.
            ForkedError: in a forked child.
        """
        self._require_usable()
        self._put(event, client)

    def submit_early(self, event: EarlyArrived, client: LeafClient) -> None:
        """Bring in early work; after ``close`` and in a forked child it is dropped without a word.

        From any thread, also from the scheduler's own.
        """
        if forks.number == self._forks and not self._closing:
            self._put(event, client)

    def submit_together(self, event: LeafArrived, client: LeafClient) -> None:
        """Bring in a leaf from a task, together with those of the tasks that run next on its loop.

        Raises:
            ClosedError: after ``close``.
            ForkedError: in a forked child.
        """
        self._require_usable()
        self._gathered.add(event, client)

    def send_gathered(self) -> None:
        """Submit the gathered leaves of this thread's loop, which is about to be blocked."""
        self._gathered.flush()

    def begin_call(
        self,
        request: RequestId,
        name: str,
        engine: EngineName,
        kind: PrimitiveKind,
        arrived_at: float,
        deadline: float | None,
    ) -> BegunCall | None:
        """Return a borrowed call to start if it need not wait: nothing could refuse it.

        It must be ended. Half of ``max_requests`` is kept for calls that do wait, so that all which
        look at the same moment still fit.
        """
        if engine not in self._unlimited or self._closing:
            return None
        now = self._clock.now()
        if self._is_half_full() or (deadline is not None and deadline <= now):
            return None
        return BegunCall(self._calls, request, name, engine, kind, arrived_at, now)

    @property
    def num_live(self) -> int:
        """Return how many requests and calls live that the scheduler knows of.

        It is read without a turn: whatever comes or ends meanwhile may count or not.
        """
        calls = self._calls
        return self._handler.state.live + len(calls.running) + len(calls.programs)

    def may_be_alone(self, request: RequestId) -> bool:
        """Tell whether no other request than this one may live; the core knows it for certain.

        It is read without a turn, so that one which has just ended may count still.
        """
        state, programs = self._handler.state, self._calls.programs
        others = state.live - (state.find(request) is not None)
        return others + len(programs) - (request in programs) <= 1

    def _is_half_full(self) -> bool:
        """Tell whether ``max_requests`` is half used, as seen from this thread."""
        # As ``num_live``, in one frame: each leaf asks.
        calls, state = self._calls, self._handler.state
        live = len(state.requests) + len(state.pending) + len(calls.running) + len(calls.programs)
        return 2 * (live + len(calls.mailbox.messages)) >= state.options.max_requests

    def begin_program(
        self, request: RequestId, program: str, arrived_at: float, deadline: float | None
    ) -> bool:
        """Begin a program's request; tell whether it is to be opened only by ``open_program``.

        Programs with a deadline, a limit or known leaves are reported to the core immediately; all
        others only when they end, since nothing has to be decided about them.
        """
        is_known = deadline is not None or program in self._leading
        if is_known or self._closing or self._is_half_full():
            self.note(RequestOpened(request, program, arrived_at, deadline))
            return False
        self._calls.programs[request] = None
        self._turns.mailbox.put_quietly((ProgramBegan(request, arrived_at), None))
        return True

    def open_program(self, opened: RequestOpened) -> None:
        """Open one that ``begin_program`` did not; its first leaf must follow."""
        if len(self._leading) >= MAX_PROGRAMS:
            self._leading.clear()  # they are opened late once more
        self._leading.add(opened.program)
        self._turns.mailbox.put_quietly((opened, None))
        self._calls.programs.pop(opened.request, None)

    def end_program(self, request: RequestId) -> None:
        """End one that was never opened."""
        if forks.number == self._forks:
            self._calls.programs.pop(request, None)
            message = ProgramEnded(request, self._clock.now()), None
            if self._handler.state.pending:  # one of them may take its place
                self._turns.post(message)
            else:
                self._turns.mailbox.put_quietly(message)

    def post(self, event: Event) -> None:
        """Tell the core that something happened; in a forked child nothing did."""
        if forks.number == self._forks:
            self._put(event)

    def note(self, event: RequestOpened | RequestClosed | ProgramLeft) -> None:
        """Tell the core of something that no caller waits for, when it looks at what comes next.

        From any thread, also from a finalizer.
        """
        if forks.number != self._forks:
            return
        if isinstance(event, ProgramLeft):
            self._leading.discard(event.program)
        if self._turns.has_ended or self._handler.state.pending:
            self._put(event)  # a caller may wait for this
        else:
            if isinstance(event, RequestClosed) and self._gathered.loop is not None:
                self._gathered.flush()
            self._turns.mailbox.put_quietly((event, None))

    def report_call(self, event: CallEnded, result: Result) -> None:
        """Tell the core that a borrowed call of a graph has ended, and hand over its result."""
        if forks.number == self._forks:
            self._put(event, {event.node: result})

    def release(self, engine: EngineName, handles: tuple[Handle, ...]) -> None:
        """Let an owned engine free its handles."""
        worker = self._handler.workers.get(engine)
        if worker is not None:
            worker.release(handles)

    def later(
        self,
        loop: asyncio.AbstractEventLoop,
        call: Callable[[], None],
        lost: Callable[[], None] | None = None,
    ) -> None:
        """Run ``call`` on a caller's loop, or ``lost`` if it is closed. Needs the turn."""
        self._handler.wakeups.add(loop, call, lost)

    def now(self) -> float:
        """Return the driver's clock in seconds."""
        return self._clock.now()

    def ask(self, question: Callable[[], T]) -> T:
        """Return the answer to a question asked between two events.

        Everything posted before by this thread has been dealt with by then.
        """
        self._require_own_process()
        if self._turns.is_mine:
            return question()
        answer: Future[T] = Future()
        self._put(None, partial(_settle, answer, question))
        return answer.result()

    def health(self) -> tuple[Health, ...]:
        """Return the health of every owned engine, by name; ForkedError in a forked child."""
        return self.ask(self._handler.health)

    def queues(self) -> dict[str, tuple[int, int]]:
        """Return of every engine how many works wait for it and how many it has, as ``health``."""
        return self.ask(self._handler.queues)

    @property
    def is_idle(self) -> bool:
        """Tell whether nothing lives: no request, no queue, no running step, no waiting caller."""
        return self.ask(lambda: self._handler.is_idle and not self._calls)

    @property
    def internal_errors(self) -> int:
        """Return how many errors of our own there were; zero unless there is a bug."""
        return self._handler.internal_errors

    @property
    def closed(self) -> bool:
        """Tell whether ``close`` was called."""
        return self._closing

    def close(self, timeout_s: float) -> bool:
        """End every request with ClosedError, stop all threads; tell whether they all ended.

        In a forked child, where none of the threads exists, this does nothing. A thread
        that has the turn does not wait.
        """
        if forks.number != self._forks:
            return True
        if not self._closing:
            self._closing = True
            self._put(Closing())
            self._put(None)
        if self._turns.is_mine:
            return False
        until = time.monotonic() + timeout_s
        ended = join(self._thread, timeout_s)
        for thread in self._worker_threads:
            ended = join(thread, max(0.0, until - time.monotonic())) and ended
        return ended

    def _require_own_process(self) -> None:
        if forks.number != self._forks:
            raise ForkedError(
                "an accelerator made before fork() was used in the child",
                found=f"process {os.getpid()}",
                valid=f"process {self._pid}",
                hint="make the Accelerator in the child, or use the process default",
            )

    def _require_usable(self) -> None:
        if forks.number != self._forks:
            self._require_own_process()
        if self._closing:
            raise ClosedError("the accelerator is closed", hint="make a new one")

    def _put(self, event: Event | None, attached: Any = None) -> None:
        if self._gathered.loop is not None:  # what concerns a leaf comes after it
            self._gathered.flush()
        self._turns.post((event, attached))

    def _report_step(self, event: StepEnded | StepFailed, results: dict[NodeKey, Result]) -> None:
        self._turns.post_and_drain((_with_retries(self._handler.clients, event, results), results))

    def _engine_ended(self, name: EngineName) -> None:
        self.hinted.leave(name)
        self._names.give_back(name)

    def _pass_partial(self, node: NodeKey, output: EngineOutput) -> bool | None:
        client = self._handler.clients.find(node)
        return client.partial(node, output) if client is not None else None


def _settle(answer: Future[T], question: Callable[[], T]) -> None:
    try:
        answer.set_result(question())
    except BaseException as error:
        answer.set_exception(error)


def _owned_engine_added(name: EngineName, profile: EngineProfile) -> OwnedEngineAdded:
    """Return the core's event for an engine with this profile."""
    return OwnedEngineAdded(
        name,
        profile.max_batch,
        profile.max_threads,
        profile.latency.base_s,
        profile.latency.per_item_s,
        profile.stepped,
        profile.interruptible,
        Capability.ENDS_IN_TIME in profile.capabilities,
        Capability.ITEMWISE in profile.capabilities,
        Capability.BOUNDS_ITS_WORK in profile.capabilities,
        Capability.SHARES_CORES in profile.capabilities,
    )


def _with_retries(
    clients: Clients, event: StepEnded | StepFailed, results: Mapping[NodeKey, Result]
) -> StepEnded | StepFailed:
    """Return the event with how long each failed member must wait before another attempt.

    Called on the engine's thread: the user's code may judge an error. Intercepted calls have no
    further attempts; their programs decide about errors.
    """
    least_s: dict[NodeKey, float] = {}
    for node, result in results.items():
        client = None if result.error is None else clients.find_graph(node)
        if client is not None and result.error is not None:
            after_s = client.retry_after_s(node, result.error)
            if after_s is not None:
                least_s[node] = after_s
    if not least_s:
        return event
    if isinstance(event, StepFailed):
        errors = (NodeReport(node, "error", None, after_s) for node, after_s in least_s.items())
        return replace(event, errors=tuple(errors))
    reports = (
        replace(report, retry_after_s=least_s.get(report.node))
        if report.kind == "error"
        else report
        for report in event.reports
    )
    return replace(event, reports=tuple(reports))

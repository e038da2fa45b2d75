"""The endpoints of this process: calls of threads and of event loops wait for their turn.

One state for each endpoint, shared by all programs, frameworks, threads and loops. No thread of its
own, and no lock that a caller could wait for: an event goes into a queue that everything may append
to, a signal's handler and the garbage collection too, and the thread that holds the lock works it
off. Of the calls that wait, the timekeeper wakes when the next start is due.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, TypeVar

from rag_accel.clock import SIGNAL_S
from rag_accel.engine_api.transient import is_refusal, is_timeout
from rag_accel.engines.http.endpoint_limit import EndpointCall, EndpointLimit, Urgency
from rag_accel.engines.http.retry_after import (
    reset_s,
    retry_after_s,
    retry_delay_s,
    seconds_asked,
)
from rag_accel.errors import DeadlineError
from rag_accel.system.locks import ForkedAnew

#: endpoints that a process remembers; beyond it, those that no call uses go first
MAX_ENDPOINTS = 256
#: the most seconds for which a stream counts as a call in flight
STREAM_S = 30.0
#: seconds before a deadline at which a timeout that was to end there may fire: timers are coarse
_TIMER_S = 0.01

_Answer = TypeVar("_Answer")


class _ThreadWaiter:
    """A thread that waits."""

    def __init__(self) -> None:
        self.wake_at = inf
        # A bare lock: an event's own lock may be held by the code that a signal interrupts.
        self._nudged = threading.Lock()
        self._nudged.acquire()

    def nudge(self) -> None:
        with suppress(RuntimeError):  # it has been nudged already
            self._nudged.release()

    def wait(self, seconds: float) -> None:
        self._nudged.acquire(timeout=max(0.0, seconds))


class _TaskWaiter:
    """A task of the running loop that waits; once the loop is closed, nudges raise RuntimeError."""

    def __init__(self) -> None:
        self.wake_at = inf
        self._loop = asyncio.get_running_loop()
        self._nudged = self._loop.create_future()

    def nudge(self) -> None:
        self._loop.call_soon_threadsafe(self._wake)

    async def wait(self, seconds: float) -> None:
        timer = self._loop.call_later(max(0.0, seconds), self._wake)
        try:
            await self._nudged
        finally:
            timer.cancel()
            self._nudged = self._loop.create_future()

    def _wake(self) -> None:
        if not self._nudged.done():
            self._nudged.set_result(None)


_Waiter = _ThreadWaiter | _TaskWaiter


class EndpointPlace:
    """The place of a call at its endpoint, which all its attempts share.

    Attributes:
        call: the state of it that its endpoint's limit keeps.
        attempts: all that the call may make.
        num_retries: attempts that failed before this one.
        deadline: by when attempts must have ended, in the endpoint's seconds; None for never.
        error: that of the last one.
        patient_until: when the call's own client would send this one.
        headers: of the answer, if the caller's function sets them.
        is_kept: whether the place is kept after the answer.
        is_left: whether nothing is left to be done about the place.
    """

    def __init__(
        self, endpoint: Endpoint, call: EndpointCall, now: float, deadline: float | None
    ) -> None:
        self.call = call
        self.deadline = deadline
        self.attempts = call.attempts
        self.num_retries = 0
        self.error: BaseException | None = None
        self.patient_until = now
        self.headers: Mapping[str, str] = {}
        self.is_kept = self.is_left = False
        self._endpoint = endpoint

    def left_s(self) -> float | None:
        """Return the seconds that an attempt may take; None for as long as its client lets it.

        Raises:
            DeadlineError: the deadline has passed.
        """
        if self.deadline is None:
            return None
        left_s = self.deadline - self._endpoint.now()
        if left_s <= 0:
            raise self._late() from self.error
        return left_s

    def late(self, error: BaseException) -> DeadlineError | None:
        """Return what a client's timeout means that fired at the deadline; None for others."""
        if self.deadline is None or isinstance(error, DeadlineError) or not is_timeout(error):
            return None
        is_late = self._endpoint.now() >= self.deadline - _TIMER_S
        return self._late() if is_late else None

    def _late(self) -> DeadlineError:
        return DeadlineError(
            "a call had no answer at the deadline of its request",
            where="endpoint",
            found=f"{self.num_retries} failed attempts before it",
            hint="raise the deadline, or ask for a shorter answer",
        )

    def keep(self, response: Any) -> None:
        """Keep the place until ``release``, or until the response goes or ``STREAM_S`` are over."""
        self.is_kept = True
        endpoint = self._endpoint
        endpoint.post(lambda: endpoint.limit.hold(self.call, endpoint.now() + STREAM_S))
        weakref.finalize(response, self.release).atexit = False

    def release(self) -> None:
        """Give the place back; from anywhere, any number of times."""
        self._endpoint.leave(self.call)


class Endpoint(ForkedAnew):
    """One endpoint: its limit, and the calls that wait for it; new in a forked child.

    Args:
        now: returns monotonic seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.used_at = now()
        super().__init__()

    def renew(self) -> None:
        """Begin anew: of the parent's calls none is this process's."""
        self.limit = EndpointLimit()
        self._lock = threading.Lock()
        self._events = deque[Callable[[], object]]()
        self._waiters: dict[EndpointCall, _Waiter] = {}
        self._timekeeper: EndpointCall | None = None
        self._inside = set[int]()
        self._next_at = inf

    @property
    def is_busy(self) -> bool:
        """Whether calls are in flight or wait."""
        return bool(self.limit.num_in_flight or self._waiters)

    def call(
        self,
        ask: Callable[[EndpointPlace], _Answer],
        attempts: int = 1,
        urgency: Urgency = Urgency.ORDINARY,
        deadline: float | None = None,
        *,
        is_cut: bool = True,
    ) -> _Answer:
        """Return what ``ask`` returns, once it is the call's turn, trying again as a client does.

        Args:
            ask: asks the server once.
            attempts: how often it may be asked.
            urgency: the place among calls that wait.
            deadline: until when the call may wait, in the clock's seconds.
            is_cut: whether its attempts must have ended by then, too (``EndpointPlace.left_s``).

        Raises:
            DeadlineError: the call waited until its deadline before its first attempt.
            Exception: what the last attempt raised.
        """
        cut_at = deadline if is_cut else None
        place = EndpointPlace(self, EndpointCall(urgency, attempts), self.now(), cut_at)
        is_outer = self._enter()
        # Else it would wait for calls that go on only after it.
        may_wait = is_outer and not loop_runs()
        try:
            while True:
                if may_wait:
                    self._wait(place, deadline)
                else:
                    self._start_at_once(place)
                try:
                    answer = ask(place)
                except Exception as error:
                    wait_s = self._failed(place, error)
                    if wait_s is None:
                        raise
                else:
                    self._answered(place)
                    return answer
                time.sleep(wait_s)
        finally:
            self._end(place)
            self._exit(is_outer)

    async def acall(
        self,
        ask: Callable[[EndpointPlace], Awaitable[_Answer]],
        attempts: int = 1,
        urgency: Urgency = Urgency.ORDINARY,
        deadline: float | None = None,
        *,
        is_cut: bool = True,
    ) -> _Answer:
        """Return what ``ask`` returns, as ``call`` does; for a task of an asyncio loop."""
        cut_at = deadline if is_cut else None
        place = EndpointPlace(self, EndpointCall(urgency, attempts), self.now(), cut_at)
        try:
            while True:
                await self._await_turn(place, deadline)
                try:
                    answer = await ask(place)
                except Exception as error:
                    wait_s = self._failed(place, error)
                    if wait_s is None:
                        raise
                else:
                    self._answered(place)
                    return answer
                await asyncio.sleep(wait_s)
        finally:
            self._end(place)

    def leave(self, call: EndpointCall) -> None:
        """Give the place of a call back, or end its waiting."""
        self.post(lambda: self._leave(call))

    def _start_at_once(self, place: EndpointPlace) -> None:
        time.sleep(max(0.0, place.patient_until - self.now()))
        self.post(lambda: self.limit.start_at_once(place.call, self.now()))

    def _wait(self, place: EndpointPlace, deadline: float | None) -> None:
        before = place.call.sent
        if self._starts_at_once(place):
            return
        waiter = _ThreadWaiter()
        self._join(place, waiter, before)
        while place.call.sent == before:
            waiter.wait(self._wait_s(place, waiter, deadline))
            self._tick(place.call, before)

    async def _await_turn(self, place: EndpointPlace, deadline: float | None) -> None:
        before = place.call.sent
        if self._starts_at_once(place):
            return
        waiter = _TaskWaiter()
        self._join(place, waiter, before)
        while place.call.sent == before:
            await waiter.wait(self._wait_s(place, waiter, deadline))
            self._tick(place.call, before)

    def _starts_at_once(self, place: EndpointPlace) -> bool:
        """Let a call wait for its turn; return whether it has come already."""
        call, before = place.call, place.call.sent
        self.post(lambda: self.limit.join(call, place.patient_until))
        return call.sent != before

    def _join(self, place: EndpointPlace, waiter: _Waiter, before: int) -> None:
        call = place.call

        def join() -> None:
            if call.sent == before:
                self._waiters[call] = waiter
            else:  # it was started since
                self._nudge(call, waiter)

        self.post(join)

    def _wait_s(self, place: EndpointPlace, waiter: _Waiter, deadline: float | None) -> float:
        """Return for how many seconds to wait now.

        Raises:
            DeadlineError: the deadline has passed.
            Exception: it has passed since an attempt failed with this.
        """
        now = self.now()
        if deadline is not None and now >= deadline:
            if place.error is not None:
                raise place.error
            raise DeadlineError(
                "a call waited for its turn until its deadline",
                where="endpoint",
                found=f"{self.limit.num_in_flight} calls in flight",
                hint="raise the deadline, or send fewer calls to this endpoint",
            )
        # Beyond the timekeeper: its loop may be busy with something else.
        until = min(waiter.wake_at, now + SIGNAL_S, inf if deadline is None else deadline)
        return until - now

    def _tick(self, call: EndpointCall, before: int) -> None:
        if call.sent == before and (self._events or self.now() >= self._next_at):
            self.post(lambda: None)

    def _failed(self, place: EndpointPlace, error: Exception) -> float | None:
        """Note a failed attempt; return the seconds until the next one may wait, None without."""
        call, now = place.call, self.now()
        asked_s = delay_s = 0.0
        with suppress(Exception):  # an error of any class, whatever it calls headers
            asked_s, delay_s = _asked_s(error), retry_delay_s(error, place.num_retries)
        is_refused = is_refusal(error) and not isinstance(error, DeadlineError)
        if is_refused:
            self.post(lambda: self.limit.refuse(call, now, asked_s))
        self.leave(call)
        if not delay_s or place.num_retries + 1 >= place.attempts:
            return None
        if place.deadline is not None and now + delay_s >= place.deadline:
            return None
        place.error, place.patient_until = error, now + delay_s
        place.num_retries += 1
        # A refused call waits for its turn, and the limit knows what the server asked for.
        return 0.0 if is_refused else delay_s

    def _answered(self, place: EndpointPlace) -> None:
        call, now, pause_s = place.call, self.now(), reset_s(place.headers)

        def end() -> None:
            self.limit.succeed(call, now, pause_s)
            if not place.is_kept:
                self._leave(call)

        self.post(end)
        place.is_left = True

    def _end(self, place: EndpointPlace) -> None:
        place.error = None  # its traceback holds this frame
        if not place.is_left:
            self.leave(place.call)
        self.used_at = self.now()

    def _leave(self, call: EndpointCall) -> None:
        self._waiters.pop(call, None)
        self.limit.leave(call)

    def post(self, event: Callable[[], object]) -> None:
        """Let an event take place, now or as soon as the thread that holds the lock gets to it."""
        self._events.append(event)
        is_outer = self._enter()
        try:
            while self._events and self._lock.acquire(blocking=False):
                try:
                    while self._events:
                        self._events[0]()  # again, if an interrupt ends it: each may come twice
                        self._events.popleft()
                    self._wake(self.now())
                finally:
                    self._lock.release()
        finally:
            self._exit(is_outer)

    def _enter(self) -> bool:
        """Note that this thread works here; False if a signal, say, has interrupted it here."""
        thread = threading.get_ident()
        is_outer = thread not in self._inside
        self._inside.add(thread)
        return is_outer

    def _exit(self, is_outer: bool) -> None:
        if is_outer:
            self._inside.discard(threading.get_ident())

    def _wake(self, now: float) -> None:
        for call in self.limit.start(now):
            waiter = self._waiters.pop(call, None)
            if waiter is not None:
                self._nudge(call, waiter)
        self._next_at = wake_at = self.limit.next_start(now) or inf
        keeper = self._waiters.get(self._timekeeper) if self._timekeeper is not None else None
        if keeper is None and self._waiters:
            self._timekeeper, keeper = next(iter(self._waiters.items()))
        if keeper is not None and self._timekeeper is not None and wake_at != keeper.wake_at:
            keeper.wake_at = wake_at
            self._nudge(self._timekeeper, keeper)

    def _nudge(self, call: EndpointCall, waiter: _Waiter) -> None:
        try:
            waiter.nudge()
        except RuntimeError:  # its loop was closed
            self._events.append(lambda: self._leave(call))


class Endpoints:
    """The endpoints of a process by what tells them apart."""

    def __init__(self, most: int = MAX_ENDPOINTS) -> None:
        self._most = most
        self._endpoints: dict[Hashable, Endpoint] = {}

    def __len__(self) -> int:
        return len(self._endpoints)

    def of(self, key: Hashable) -> Endpoint:
        """Return the endpoint of a key, a new one if none is known."""
        endpoint = self._endpoints.get(key)
        if endpoint is None:
            endpoint = self._endpoints.setdefault(key, Endpoint())
            while len(self._endpoints) > self._most:
                self._forget_another(key)
        return endpoint

    def holds(self, base_url: str) -> bool:
        """Tell whether calls are in flight at an address, wait for it, or were refused by it."""
        return any(
            endpoint.is_busy or endpoint.limit.bound is not None
            for key, endpoint in list(self._endpoints.items())
            if isinstance(key, tuple) and base_url in (str(part).rstrip("/") for part in key)
        )

    def _forget_another(self, key: Hashable) -> None:
        others = [item for item in list(self._endpoints.items()) if item[0] != key]
        oldest = min(others, key=lambda item: (item[1].is_busy, item[1].used_at))
        self._endpoints.pop(oldest[0], None)


#: those of this process
PROCESS_ENDPOINTS = Endpoints()


def _ordinary() -> Urgency:
    return Urgency.ORDINARY


def _no_deadline() -> float | None:
    return None


@dataclass(frozen=True, slots=True)
class EndpointGate:
    """The way of a program's calls to the endpoints.

    Args:
        urgency: returns that of the call that begins.
        deadline: returns until when it may wait, in seconds of ``time.monotonic``; None for ever.
        endpoints: where the calls go.
        is_cut: whether a call must have ended by then, too; shared calls go on for the others.
    """

    urgency: Callable[[], Urgency] = _ordinary
    deadline: Callable[[], float | None] = _no_deadline
    endpoints: Endpoints = field(default=PROCESS_ENDPOINTS)
    is_cut: bool = True

    def call(
        self, key: Hashable, ask: Callable[[EndpointPlace], _Answer], attempts: int
    ) -> _Answer:
        """Ask an endpoint; see ``Endpoint.call``."""
        endpoint = self.endpoints.of(key)
        deadline = self.deadline()
        return endpoint.call(ask, attempts, self.urgency(), deadline, is_cut=self.is_cut)

    async def acall(
        self, key: Hashable, ask: Callable[[EndpointPlace], Awaitable[_Answer]], attempts: int
    ) -> _Answer:
        """Ask an endpoint from a task of an asyncio loop; see ``Endpoint.acall``."""
        endpoint = self.endpoints.of(key)
        deadline = self.deadline()
        return await endpoint.acall(ask, attempts, self.urgency(), deadline, is_cut=self.is_cut)


def _asked_s(error: Exception) -> float:
    """Return for how many seconds the server asks to send nothing; 0.0 if it does not."""
    headers: Any = getattr(getattr(error, "response", None), "headers", {})
    return seconds_asked(headers) or retry_after_s(headers) or reset_s(headers)


def loop_runs() -> bool:
    """Tell whether a loop of asyncio runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

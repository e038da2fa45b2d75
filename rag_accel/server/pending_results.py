"""The results of requests, from their start until a caller takes them. No scheduling here."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from rag_accel.clock import MonotonicClock
from rag_accel.errors import (
    BusyError,
    ClosedError,
    DeadlineError,
    RequestCancelledError,
    SchedulingError,
)
from rag_accel.leaves.call_pool import CallPool
from rag_accel.requests.execution import RunHandle
from rag_accel.server.stats import (
    RequestState,
    ServedId,
    ServedResult,
    ServerStats,
    WorkflowCounters,
)
from rag_accel.server.waiting import Listeners
from rag_accel.telemetry.metrics import Snapshot


@dataclass(slots=True, eq=False)
class ServedRequest:
    """A request the server has accepted; guarded by the server's lock.

    Args:
        started_at: when it was added, on the clock of ``PendingResults``, in seconds.
        is_claimed: whether a caller waits for just this one; then it comes out nowhere else.
        is_cancelled: whether the user asked for its end.
        ended_at: when it ended; its result follows once its reducers have run.
    """

    id: ServedId
    program: str
    started_at: float
    handle: RunHandle | None = None
    is_claimed: bool = False
    is_cancelled: bool = False
    ended_at: float | None = None
    result: ServedResult | None = None


class PendingResults:
    """Live requests, and finished ones in the order in which they ended. Thread-safe.

    Args:
        calls: runs reducers, the user's code, which must not hold up the scheduler's thread.
        max_unfetched: results kept until they are fetched; past it the oldest is dropped.
    """

    def __init__(self, calls: CallPool, max_unfetched: int) -> None:
        self.listeners = Listeners()
        self._calls = calls
        self._max_unfetched = max_unfetched
        self._clock = MonotonicClock()
        # Re-entrant: a finalizer may come here while its own thread is inside.
        self._lock = threading.RLock()
        self._last_id = 0
        self._live: dict[ServedId, ServedRequest] = {}
        self._unfetched: dict[ServedId, ServedRequest] = {}
        self._counters = WorkflowCounters()
        self._totals: dict[RequestState, int] = {"finished": 0, "failed": 0, "cancelled": 0}
        self._refused = 0
        self._dropped = 0
        #: why no request is taken in any more
        self._why_shut: str | None = None
        self._is_closed = False

    def open(self, program: str) -> ServedRequest:
        """Take in a request; ``follow`` or ``withdraw`` must be next.

        Raises:
            ClosedError: after ``shut``.
        """
        with self._lock:
            if self._why_shut is not None:
                raise ClosedError(self._why_shut, hint="make a new Server")
            self._last_id += 1
            served = ServedRequest(ServedId(self._last_id), program, self._clock.now())
            self._live[served.id] = served
            self._counters.started(program)
            return served

    def follow(self, served: ServedRequest, handle: RunHandle, *, folds: bool) -> None:
        """Watch a started request for its end; ``folds`` says that its result needs reducers."""
        with self._lock:
            served.handle = handle
            is_late = self._is_closed
        if is_late:
            handle.cancel()
        handle.when_over(partial(self._over, served, folds))

    def withdraw(self, served: ServedRequest, error: BaseException) -> None:
        """Forget a request that could not be started."""
        with self._lock:
            del self._live[served.id]
            self._counters.withdrawn(served.program)
            self._refused += isinstance(error, BusyError)
        self.listeners.tell(served.id)

    def cancel(self, id: ServedId) -> bool:
        """Ask for the end of a request; tell whether it was live."""
        with self._lock:
            served = self._live.get(id) if isinstance(id, int) else None
            handle = served.handle if served is not None else None
            if served is None or handle is None:
                return False
            served.is_cancelled = True
        handle.cancel()
        return True

    def shut(self, why: str) -> None:
        """Take in no further request."""
        with self._lock:
            self._why_shut = self._why_shut or why

    def close(self, *, cancel: bool) -> None:
        """Take in no further request, and end the live ones if their owner does not."""
        with self._lock:
            self._why_shut = "the server is closed"
            self._is_closed = True
            live = [served.handle for served in self._live.values()] if cancel else []
        for handle in live:
            if handle is not None:
                handle.cancel()
        self.listeners.tell()

    def take(self) -> list[ServedResult]:
        """Hand out the unclaimed results, in the order in which requests ended."""
        with self._lock:
            taken, self._unfetched = self._unfetched, {}
        return [served.result for served in taken.values() if served.result is not None]

    def take_ready(self) -> list[ServedResult] | None:
        """Hand out the unclaimed results; None if there is none and one may still come."""
        with self._lock:
            over = self._is_closed and not self._live
            return self.take() if self._unfetched or over else None

    def take_next(self) -> list[ServedResult] | None:
        """Hand out the one that ended first; nothing if none is left, None if one will come."""
        with self._lock:
            for id in self._unfetched:
                result = self._unfetched.pop(id).result
                return [] if result is None else [result]
            return None if any(not served.is_claimed for served in self._live.values()) else []

    def is_empty(self) -> bool | None:
        """Return True if no request lives, else None."""
        with self._lock:
            return None if self._live else True

    @contextmanager
    def claimed(self, id: ServedId) -> Iterator[ServedRequest]:
        """Keep one result for the caller of the block, for ``collect``; not if the block raises.

        Raises:
            SchedulingError: if there is no such result to wait for.
        """
        with self._lock:
            known = isinstance(id, int)
            served = (self._live.get(id) or self._unfetched.pop(id, None)) if known else None
            if served is None:
                raise self._unknown(id)
            if served.is_claimed:
                raise SchedulingError(
                    "somebody waits for this result already",
                    where=f"request {id}",
                    hint="each result is handed out once; let one caller pass it on",
                )
            served.is_claimed = True
        self.listeners.tell()
        try:
            yield served
        except BaseException:
            with self._lock:
                served.is_claimed = False
                if served.result is not None:
                    self._keep(served)
            self.listeners.tell(served.id)
            raise

    def collect(self, served: ServedRequest) -> ServedResult:
        """Return a claimed result; without one yet it is claimed no longer.

        Raises:
            DeadlineError: if there is none yet.
        """
        with self._lock:
            result = served.result
            served.is_claimed = result is not None
        if result is None:
            raise DeadlineError(
                "no result yet", where=f"request {served.id}", hint="wait again, or cancel it"
            )
        return result

    def stats(self, accelerator: Snapshot) -> ServerStats:
        """Return all counts as they are now."""
        with self._lock:
            return ServerStats(
                live=len(self._live),
                **self._totals,
                refused=self._refused,
                unfetched=len(self._unfetched),
                dropped=self._dropped,
                workflows=self._counters.workflows(),
                accelerator=accelerator,
            )

    def _over(self, served: ServedRequest, folds: bool) -> None:
        """Note when a request ended. The scheduler's thread: none of the user's code runs here."""
        with self._lock:
            if served.ended_at is not None:
                return
            served.ended_at = self._clock.now()
        if not folds:
            self._settle(served)
            return
        try:
            self._calls.submit(partial(self._settle, served))
        except Exception as error:  # closed, or no thread could be had
            self._end(served, None, error)

    def _settle(self, served: ServedRequest) -> None:
        assert served.handle is not None, "a request ended before it was followed"
        self._end(served, *outcome_of(served.handle))

    def _end(self, served: ServedRequest, output: Any, error: BaseException | None) -> None:
        with self._lock:
            assert served.ended_at is not None, "a request has a result before it ended"
            handle, served.handle = served.handle, None
            assert handle is not None, "a request ended before it was followed"
            latency_s = served.ended_at - served.started_at
            state, error = self._state(served, error)
            told = (output, error, handle.usage, handle.retries, handle.fallbacks)
            served.result = ServedResult(served.id, served.program, state, latency_s, *told)
            del self._live[served.id]
            self._totals[state] += 1
            self._counters.ended(served.program, state, latency_s)
            if not served.is_claimed:
                self._keep(served)
        self.listeners.tell(served.id)

    def _state(
        self, served: ServedRequest, error: BaseException | None
    ) -> tuple[RequestState, BaseException | None]:
        if error is None:
            return "finished", None
        if not isinstance(error, RequestCancelledError):
            return "failed", error
        if served.is_cancelled:
            return "cancelled", error
        if self._is_closed:
            error = ClosedError("the server is closed", where=f"request {served.id}")
        return "failed", error

    def _keep(self, served: ServedRequest) -> None:
        self._unfetched[served.id] = served
        while len(self._unfetched) > self._max_unfetched:
            del self._unfetched[next(iter(self._unfetched))]
            self._dropped += 1

    def _unknown(self, id: object) -> SchedulingError:
        return SchedulingError(
            "there is no such result",
            where=f"request {id}",
            valid=f"an id from 1 to {self._last_id} whose result was not handed out yet",
            hint=f"each result is handed out once, and the newest {self._max_unfetched} are kept",
        )


def outcome_of(handle: RunHandle) -> tuple[Any, BaseException | None]:
    """Return the result and the error of a request that is over; its reducers run here."""
    try:
        return handle.result(), None
    except BaseException as error:  # whatever it is, it is the request's
        return None, error

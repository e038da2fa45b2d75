"""A member of a pool: an owned engine, stepped on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rag_accel.clock import Clock
from rag_accel.engine_api import (
    Capability,
    CountingEngine,
    Engine,
    EngineOutput,
    EngineProfile,
    EngineRequest,
    Handle,
    StepBudget,
    WorkId,
)

#: Longest that a step waits that nothing interrupts, in seconds.
STEP_S = 5.0


@dataclass(frozen=True, slots=True)
class MemberReport:
    """A report of a member's step.

    Args:
        member: which one.
        outputs: of its works.
        is_broken: whether the outputs are errors of a step that raised.
        is_over: whether its thread has ended.
    """

    member: int
    outputs: Sequence[EngineOutput] = ()
    is_broken: bool = False
    is_over: bool = False


@dataclass(slots=True)
class _Orders:
    """The orders of a member before its next step, in the order in which they are obeyed."""

    cancelled: list[WorkId]
    released: list[Handle]
    submitted: list[EngineRequest]
    is_end: bool = False


class PoolMember:
    """An engine, and the thread on which all its methods run.

    Args:
        place: which member of its pool it is.
        engine: from then on used by this thread alone.
        report: takes what a step gave, on that thread.
        clock: tells how long a step has taken.
    """

    def __init__(
        self, place: int, engine: Engine, report: Callable[[MemberReport], None], clock: Clock
    ) -> None:
        self.place = place
        self.engine = engine
        self.profile: EngineProfile = engine.profile
        self.threads = 1
        #: those of the engine after its last step; replaced as a whole, for other threads
        self.counts: Mapping[str, int] = {}
        self._report = report
        self._clock = clock
        #: when the running step began, on the clock
        self._began: float | None = None
        self._wake = threading.Condition()
        self._orders = _Orders([], [], [])
        self._is_waiting = False
        self._thread: threading.Thread | None = None

    def submit(self, work: Sequence[EngineRequest]) -> None:
        """Let the engine take work with its next step."""
        self._order(lambda orders: orders.submitted.extend(work))

    def cancel(self, ids: Sequence[WorkId]) -> None:
        """Let the engine forget work; what was not submitted yet is never."""
        gone = frozenset(ids)

        def drop(orders: _Orders) -> None:
            orders.submitted = [request for request in orders.submitted if request.id not in gone]
            orders.cancelled.extend(ids)

        self._order(drop)

    def release(self, handles: Sequence[Handle]) -> None:
        """Let the engine free state."""
        self._order(lambda orders: orders.released.extend(handles))

    def hangs(self, step_timeout_s: float) -> bool:
        """Tell whether its step takes longer than this, beyond what it may wait."""
        began = self._began
        if began is None or Capability.BOUNDS_ITS_WORK in self.profile.capabilities:
            return False
        waits_s = STEP_S if self.profile.interruptible else 0.0
        return self._clock.now() - began > step_timeout_s + waits_s

    def close(self) -> None:
        """Let the engine be closed behind its running step."""
        if self._thread is None:
            self.engine.close()
            self._report(MemberReport(self.place, is_over=True))
            return

        def end(orders: _Orders) -> None:
            orders.is_end = True

        self._order(end)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread; tell whether it has ended."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _order(self, change: Callable[[_Orders], None]) -> None:
        with self._wake:
            change(self._orders)
            self._wake.notify()
            steps = self._is_waiting
        if self._thread is None:
            name = f"rag-accel-pool-{self.place + 1}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        elif steps and self.profile.interruptible:
            self.engine.interrupt()

    def _run(self) -> None:
        held: dict[WorkId, EngineRequest] = {}
        while True:
            orders = self._taken(wait=not held)
            if orders.is_end:
                break
            self._step(orders, held)
            # The next wait may be long: no work may stay alive with it.
            del orders
        try:
            self.engine.close()
        finally:
            self._report(MemberReport(self.place, is_over=True))

    def _taken(self, wait: bool) -> _Orders:
        with self._wake:
            if wait:
                self._wake.wait_for(self._has_orders)
            taken, self._orders = self._orders, _Orders([], [], [])
            self._is_waiting = True
            return taken

    def _has_orders(self) -> bool:
        orders = self._orders
        return bool(orders.submitted or orders.cancelled or orders.released or orders.is_end)

    def _step(self, orders: _Orders, held: dict[WorkId, EngineRequest]) -> None:
        """Do what was ordered and step once; report of all works that have ended."""
        if orders.cancelled:
            self.engine.cancel(orders.cancelled)
            for id in orders.cancelled:
                held.pop(id, None)
        if orders.released:
            self.engine.release(orders.released)
        held.update((request.id, request) for request in orders.submitted)
        if not held:
            return
        try:
            if orders.submitted:
                self.engine.submit(orders.submitted)
            self._tell(self._stepped(), held)
        except BaseException as error:
            works = list(held.values())
            held.clear()
            self._begin_again(works, error)

    def _begin_again(self, works: Sequence[EngineRequest], error: BaseException) -> None:
        """Run the works of a step that raised one by one; what streams, or was alone, has failed.

        One bad item must not harm its neighbours, here or at the next member.
        """
        for work in works:
            if work.stream or len(works) == 1:
                self._broke(work, error)
                continue
            alone = {work.id: work}
            try:
                self.engine.submit([work])
                while alone:
                    self._tell(self._stepped(), alone)
            except BaseException as own:
                self._broke(work, own)

    def _broke(self, work: EngineRequest, error: BaseException) -> None:
        output = EngineOutput(work.id, "error", error=error)
        self._report(MemberReport(self.place, [output], is_broken=True))

    def _stepped(self) -> Sequence[EngineOutput]:
        budget = StepBudget(STEP_S if self.profile.interruptible else None, self.threads)
        self._began = self._clock.now()
        try:
            return self.engine.step(budget)
        finally:
            self._began = None
            if isinstance(self.engine, CountingEngine):
                self.counts = dict(self.engine.counts)

    def _tell(self, outputs: Sequence[EngineOutput], held: dict[WorkId, EngineRequest]) -> None:
        for output in outputs:
            if output.kind in ("final", "error"):
                held.pop(output.id, None)
        if outputs:
            self._report(MemberReport(self.place, outputs))

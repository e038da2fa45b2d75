"""A base of engines that make one call of a server for requests of several callers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from rag_accel.engine_api import (
    Capability,
    EngineOutput,
    EngineProfile,
    PrimitiveKind,
    StepBudget,
)
from rag_accel.engines.bases import OutboxEngine, ReportT

#: Items of the scheduler that may run at once: such an engine itself decides what waits.
_NO_LIMIT = 1 << 30
#: seconds in which calls that are in flight may end after ``close``
_CLOSE_S = 3.0


class SharedCallsEngine(OutboxEngine[Any, ReportT]):
    """A base of engines that gather requests, and make each call of a server in its own thread."""

    def __init__(self, kind: PrimitiveKind, where: str) -> None:
        profile = EngineProfile(
            kinds=frozenset({kind}),
            max_batch=_NO_LIMIT,
            max_threads=0,
            stepped=True,
            interruptible=True,
            capabilities=frozenset({Capability.BOUNDS_ITS_WORK}),
        )
        super().__init__(profile, where)
        self._threads: set[threading.Thread] = set()

    def step(self, budget: StepBudget) -> Sequence[EngineOutput]:
        """Send due calls, and wait up to ``budget.time_s`` for answers, or until interrupted."""
        self._send_due()
        outputs = super().step(budget)
        self._send_due()
        return outputs

    def close(self) -> None:
        """Forget everything and wait a little for the threads of calls in flight. Idempotent."""
        if self._is_forked:
            return
        self._closed = True
        self._jobs.clear()
        self._clear()
        until = time.monotonic() + _CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._threads.clear()

    def _send_due(self) -> None:
        """Send the calls that wait for nothing any more."""
        raise NotImplementedError

    def _clear(self) -> None:
        """Forget what is not sent."""
        raise NotImplementedError

    def _run(self, target: Callable[..., object], *args: Any) -> None:
        """Run a call in a thread, which puts its answer into the outbox."""
        thread = threading.Thread(target=target, args=args, name="shared-call", daemon=True)
        self._threads = {one for one in self._threads if one.is_alive()} | {thread}
        thread.start()

    def _forget(self, job: Any) -> bool:
        """Forget work that has ended; False if it was cancelled before."""
        if self._jobs.get(job.id) is not job:
            return False
        del self._jobs[job.id]
        return True

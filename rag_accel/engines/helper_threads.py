"""Calls that an engine computes at the same time, each in a thread of its own.

Where torch is set to one thread a call (``OMP_NUM_THREADS=1``, ``torch.set_num_threads(1)``), a
program's threads keep all cores busy by calling a model at the same time. An engine that makes one
call at a time would keep one busy; so it makes several, over the same weights, on one thread each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rag_accel.engines.torch_threads import on_threads
from rag_accel.system.processor import usable_cores


def default_parallel(threads: int) -> int:
    """Return how many calls to compute at a time, by the number of threads that each may use.

    One for each usable core where that number is one, else one: such a call uses the cores itself.
    """
    return usable_cores() if threads == 1 else 1


def describe_parallel(threads: int) -> str:
    """Say in a few words, after a comma, what ``default_parallel`` means; else nothing."""
    parallel = default_parallel(threads)
    if parallel == 1:
        return ""
    return f", torch has one thread a call: up to {parallel} at a time for different requests"


class HelperThreads:
    """Threads of an engine that live as long as the calls that they compute."""

    def __init__(self) -> None:
        #: notified when a call has ended
        self._changed = threading.Condition()
        self._running: set[HelperCall] = set()

    def start(self, call: Callable[[], Any]) -> HelperCall:
        """Compute ``call`` in a thread of its own, on one torch thread.

        Where the process cannot have another thread, it is computed here, before this returns.
        """
        started = HelperCall(on_threads(1, call), self)
        with self._changed:
            self._running.add(started)
        # A daemon: one that hangs must not keep the process. ``join`` waits for the others.
        thread = threading.Thread(target=started.run, name="rag-accel-helper", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            started.run()
        return started

    def note_end(self, call: HelperCall) -> None:
        """Tell those who wait that a call has ended."""
        with self._changed:
            self._running.discard(call)
            self._changed.notify_all()

    def wait(self, call: HelperCall, timeout_s: float) -> None:
        """Return once any call has ended or ``call`` had, at the latest after so many seconds."""
        with self._changed:
            if not call.is_done:
                self._changed.wait(timeout_s)

    def join(self) -> None:
        """Wait until all calls have ended."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)


class HelperCall:
    """One call; its result is handed out once."""

    def __init__(self, call: Callable[[], Any], helpers: HelperThreads) -> None:
        self._call: Callable[[], Any] | None = call
        self._helpers = helpers
        self._result: Any = None
        self._error: BaseException | None = None
        self.is_done = False

    def run(self) -> None:
        """Compute it; its exception is raised where the result is taken."""
        call = self._call
        assert call is not None, "a call is computed once"
        try:
            self._result = call()
        except BaseException as error:
            self._error = error
        finally:
            self._call = None
            self.is_done = True
            self._helpers.note_end(self)

    def wait(self, timeout_s: float) -> bool:
        """Tell whether it has ended; return when any call of these threads does, or in time."""
        if not self.is_done and timeout_s > 0:
            self._helpers.wait(self, timeout_s)
        return self.is_done

    def __call__(self) -> Any:
        """Wait for it and return its result, or raise its error."""
        while not self.is_done:
            self._helpers.wait(self, _PATIENCE_S)
        error, self._error = self._error, None
        if error is not None:
            raise error
        result, self._result = self._result, None
        return result


#: How long one wait for the end of a call is; it is waited for again.
_PATIENCE_S = 1.0

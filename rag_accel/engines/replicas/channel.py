"""The calls that take work to a process and bring its outputs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Literal

from rag_accel.engines.replicas.messages import HostedWork, HostReports
from rag_accel.engines.replicas.processes import HostCall, HostGoneError, HostProcess


class CallHandover:
    """Passes a call from the thread that sends work to the one that collects outputs.

    A process without work need not be polled: the call that brings work returns the first outputs,
    too, which saves a second call under way. Whoever sends claims the collecting thread, if it
    waits, and must then ``put``.
    """

    def __init__(self) -> None:
        self._wake = threading.Condition()
        self._state: Literal["away", "waiting", "claimed", "ended"] = "away"
        self._call: HostCall | None = None

    def wait(self, timeout_s: float, is_idle: Callable[[], bool]) -> HostCall | None:
        """Return a call that brought work; None after a time, or at once if there is work.

        Work that found nobody waiting was sent without a handover; ``is_idle`` sees it.
        """
        with self._wake:
            if self._state == "ended":
                return None
            self._state = "waiting"
            if is_idle():
                self._wake.wait_for(lambda: self._state != "waiting", timeout_s)
            self._wake.wait_for(lambda: self._state != "claimed")
            if self._state == "waiting":
                self._state = "away"
            call, self._call = self._call, None
            return call

    def claim(self) -> bool:
        """Tell whether a thread waits, which now waits for ``put``."""
        with self._wake:
            if self._state != "waiting":
                return False
            self._state = "claimed"
            return True

    def put(self, call: HostCall | None) -> None:
        """Hand a call over; None where it could not begin."""
        with self._wake:
            self._call = call
            self._state = "ended" if self._state == "ended" else "away"
            self._wake.notify_all()

    def end(self) -> None:
        """Let nobody wait any more."""
        with self._wake:
            self._state = "ended"
            self._wake.notify_all()


#: Seconds that a call waits in the process for outputs, and between polls of one without work.
POLL_S = 0.5


class WorkChannel:
    """Work on its way to a process, and its outputs on theirs.

    A poll waits in a process that has work. One that has none is sent work by a call which also
    returns the first outputs: a round trip is one call, not two that pass each other.

    Args:
        process: hosts the engine.
        lost_after_s: seconds of silence after which a call is given up.
    """

    def __init__(self, process: HostProcess, lost_after_s: float) -> None:
        self._process = process
        self._most_s = POLL_S + lost_after_s
        self._handover = CallHandover()
        self._taken = 0

    def restart(self) -> None:
        """Begin with the outputs of a new process."""
        self._taken = 0

    def send(self, work: Sequence[HostedWork]) -> HostCall | None:
        """Send work; None if the process is gone. On any thread."""
        if not self._handover.claim():
            return self.begin("submit", work)
        call = None
        try:
            call = self.begin("exchange", work, self._taken, POLL_S)
        finally:
            self._handover.put(call)
        return call

    def begin(self, method: str, *arguments: object) -> HostCall | None:
        """Begin a call of the process; None if it is gone, which whoever collects will notice."""
        try:
            return self._process.call(method, *arguments)
        except HostGoneError:
            return None

    def collect(self, is_idle: Callable[[], bool]) -> HostReports:
        """Wait for outputs, or a while; on one thread.

        Args:
            is_idle: tells whether the process has no work.

        Raises:
            Exception: as ``HostCall.result``.
        """
        reports = self._brought(self._handover.wait(POLL_S, is_idle))
        if reports is None:
            wait_s = 0.0 if is_idle() else POLL_S
            reports = self._process.call("poll", self._taken, wait_s).result(self._most_s)
        self._taken = reports.end
        return reports

    def end(self) -> None:
        """Let nobody wait for work any more."""
        self._handover.end()

    def _brought(self, call: HostCall | None) -> HostReports | None:
        """Return the outputs of a call that brought work.

        None where it failed: a poll then tells of the process, and the call of its work.
        """
        if call is None:
            return None
        try:
            return call.result(self._most_s)
        except HostGoneError:
            raise
        except Exception:
            return None

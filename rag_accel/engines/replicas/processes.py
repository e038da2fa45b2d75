"""Processes that host engines, as those who use them see them: started, called and ended.

``child_process.py`` has those of this machine, ``ray/engine.py`` the actors of Ray; tests have some
in their own process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from rag_accel.engines.option_checks import check_least, check_whole
from rag_accel.engines.replicas.host import HostedWork, HostReports
from rag_accel.errors import ConfigError

#: Most seconds in which the answer of a call that has ended is fetched.
_FETCH_S = 1.0


class HostGoneError(Exception):
    """A process is gone, for now or for good.

    Args:
        text: how it ended, as far as is known.
        is_final: whether it is started no more.
    """

    def __init__(self, text: str, *, is_final: bool) -> None:
        super().__init__(text)
        self.is_final = is_final


class HostCall(Protocol):
    """A call of a method in another process, under way or ended."""

    def result(self, timeout_s: float) -> Any:
        """Return what the method returned.

        Raises:
            HostGoneError: the process is gone.
            TimeoutError: it has not ended in time.
            Exception: what the method raised.
        """
        ...

    def is_done(self) -> bool:
        """Tell whether it has ended, in whatever way; at once."""
        ...


class HostProcess(Protocol):
    """A process that hosts an engine, see ``EngineHost``; may be used on any thread."""

    def call(self, method: str, *arguments: Any) -> HostCall:
        """Begin a call of a method.

        Raises:
            HostGoneError: no process can be started any more.
        """
        ...

    def end(self, *, restart: bool) -> None:
        """End it at once; another one is started in its place where ``restart`` says so."""
        ...


def failure_of(call: HostCall) -> Exception | None:
    """Return what a call raised; None where it has not, or goes on."""
    if not call.is_done():
        return None
    try:
        call.result(_FETCH_S)
    except Exception as error:
        return error
    return None


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
        self._taken = 0
        #: where the collecting thread waits for a call that brings work; None while nobody does
        self._handover: SimpleQueue[HostCall | None] | None = None
        self._is_over = False
        self._lock = threading.Lock()

    def restart(self) -> None:
        """Begin with the outputs of a new process."""
        self._taken = 0

    def send(self, work: Sequence[HostedWork]) -> HostCall | None:
        """Send work; None if the process is gone. On any thread."""
        handover = self._claim()
        if handover is None:
            return self.begin("submit", work)
        call = None
        try:
            call = self.begin("exchange", work, self._taken, POLL_S)
        finally:
            handover.put(call)
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
        reports = self._brought(self._handed_over(is_idle))
        if reports is None:
            wait_s = 0.0 if is_idle() else POLL_S
            reports = self._process.call("poll", self._taken, wait_s).result(self._most_s)
        self._taken = reports.end
        return reports

    def end(self) -> None:
        """Let nobody wait for work any more."""
        self._is_over = True
        if (handover := self._claim()) is not None:
            handover.put(None)

    def _claim(self) -> SimpleQueue[HostCall | None] | None:
        """Return where somebody waits, who goes on waiting until something is put there."""
        with self._lock:
            handover, self._handover = self._handover, None
            return handover

    def _handed_over(self, is_idle: Callable[[], bool]) -> HostCall | None:
        """Return a call that brought work; None after a time, or at once if there is work.

        Work that found nobody waiting was sent by itself; ``is_idle`` sees it.
        """
        handover: SimpleQueue[HostCall | None] = SimpleQueue()
        with self._lock:
            self._handover = handover
        if is_idle() and not self._is_over:
            with suppress(Empty):
                return handover.get(timeout=POLL_S)
        return handover.get() if self._claim() is None else None

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOptions:
    """The number and bounds of the processes that host an engine.

    Args:
        replicas: processes at the start, and the least there are.
        max_replicas: most processes; None for ``replicas``, so that their number stays.
        scale_at: items in flight for each replica from which another one is started; None for what
            the engine puts into two steps.
        idle_s: seconds without work after which a replica beyond ``replicas`` is ended.
        max_restarts: how often a process that died is started again; forgotten after it has served
            for an hour.
        resends: how often work that was alone in a process is sent again after that was lost; what
            was not alone is sent again in smaller parts until it is; 0 never.
        start_timeout_s: most seconds in which a process must have made its engine.
        work_timeout_s: most seconds of a piece of work; then it ends in an error, or is sent again
            if it was not alone in a step that hangs.
        lost_after_s: a process that is silent for so many seconds is ended, and started again.
        close_timeout_s: most seconds in which a process frees its engine at the end.

    Raises:
        ConfigError: an option out of range.
    """

    replicas: int = 1
    max_replicas: int | None = None
    scale_at: int | None = None
    idle_s: float = 60.0
    max_restarts: int = 10
    resends: int = 1
    start_timeout_s: float = 120.0
    work_timeout_s: float = 600.0
    lost_after_s: float = 10.0
    close_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        name = type(self).__name__
        for option in fields(self):
            if isinstance(option.default, int | float) and getattr(self, option.name) is None:
                raise ConfigError(
                    "option out of range",
                    where=f"{name}.{option.name}",
                    found=None,
                    valid="a number",
                )
        for option in ("replicas", "max_replicas", "scale_at"):
            check_whole(f"{name}.{option}", getattr(self, option), 1)
        for option in ("max_restarts", "resends"):
            check_whole(f"{name}.{option}", getattr(self, option), 0)
        for option in ("start_timeout_s", "work_timeout_s", "lost_after_s", "close_timeout_s"):
            check_least(f"{name}.{option}", getattr(self, option), 0.001)
        check_least(f"{name}.idle_s", self.idle_s, 0)
        if self.most_replicas < self.replicas:
            raise ConfigError(
                "fewer replicas at most than at least",
                where=f"{name}.max_replicas",
                found=self.max_replicas,
                valid=f"from replicas={self.replicas}",
            )

    @property
    def most_replicas(self) -> int:
        """Return the most processes there are at a time."""
        return self.replicas if self.max_replicas is None else self.max_replicas

    @property
    def needs(self) -> str:
        """Return what a process waits for before it starts, in words; empty for nothing."""
        return ""

"""Count borrowed calls that need not wait where they run, and report each once it has ended."""

from __future__ import annotations

import os
from collections.abc import Callable

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.scheduler.driver.mailbox import Message
from rag_accel.scheduler.messages import CallMade, EngineName, RequestId


class BegunCalls:
    """Know the calls that run without having asked for a permit.

    Args:
        now: the driver's clock, in seconds.
        report: takes what is to be told of a call that has ended.
    """

    __slots__ = ("now", "pid", "report", "running")

    def __init__(self, now: Callable[[], float], report: Callable[[Message], None]) -> None:
        self.now = now
        self.report = report
        self.pid = os.getpid()
        #: ids of the calls; single operations on a dict need no lock
        self.running: dict[int, None] = {}


class BegunCall:
    """A borrowed call that need not wait for a permit.

    Its caller keeps it before he lets it ``start``: whatever interrupts him, he can ``end`` it.

    Args:
        calls: where it is counted while it runs.
        request: whose call it is.
        name: of the call, unique within its request.
        arrived_at: when its request began, on the driver's clock in seconds.
        began_at: when it began, on the same clock.
    """

    __slots__ = ("_arrived_at", "_began_at", "_calls", "_engine", "_kind", "_name", "_request")

    def __init__(
        self,
        calls: BegunCalls,
        request: RequestId,
        name: str,
        engine: EngineName,
        kind: PrimitiveKind,
        arrived_at: float,
        began_at: float,
    ) -> None:
        self._calls = calls
        self._request = request
        self._name = name
        self._engine = engine
        self._kind = kind
        self._arrived_at = arrived_at
        self._began_at = began_at

    def start(self) -> None:
        """Count it among those that run."""
        self._calls.running[id(self)] = None

    def end(self, ok: bool) -> None:
        """Report it, if it was counted; may be repeated. In a forked child it is the parent's."""
        calls = self._calls
        if calls.running.pop(id(self), self) is self or os.getpid() != calls.pid:
            return
        made = CallMade(
            self._request,
            self._name,
            self._engine,
            self._kind,
            self._arrived_at,
            self._began_at,
            calls.now(),
            ok,
        )
        calls.report((made, None))

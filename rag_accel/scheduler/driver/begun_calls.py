"""Borrowed calls that need no permit, and programs that have made no others.

They are counted where they run and reported once they have ended.
"""

from __future__ import annotations

from collections.abc import Callable

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.scheduler.driver.mailbox import Mailbox
from rag_accel.scheduler.messages import CallMade, EngineName, RequestId
from rag_accel.system.forks import forks


class BegunCalls:
    """The calls that run without having asked for a permit, and the programs not opened yet.

    Args:
        now: the driver's clock, in seconds.
        mailbox: takes what is to be told of a call that has ended.
    """

    __slots__ = ("forks", "mailbox", "now", "programs", "running")

    def __init__(self, now: Callable[[], float], mailbox: Mailbox) -> None:
        self.now = now
        self.mailbox = mailbox
        self.forks = forks.number
        #: ids of the calls; single operations on a dict need no lock
        self.running: dict[int, None] = {}
        #: requests of programs; as above
        self.programs: dict[RequestId, None] = {}

    def __len__(self) -> int:
        return len(self.running) + len(self.programs)


class BegunCall:
    """A borrowed call that need not wait for a permit.

    Its caller keeps it before calling ``start``: an interrupted caller can still ``end`` it.

    Args:
        calls: where it is counted while it runs.
        request: whose call it is.
        name: of the call, unique within its request.
        arrived_at: when its request began, on the driver's clock in seconds.
        began_at: when it began, on the same clock.
    """

    __slots__ = (
        "_arrived_at",
        "_began_at",
        "_calls",
        "_ended_at",
        "_engine",
        "_kind",
        "_request",
        "name",
    )

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
        self.name = name
        self._engine = engine
        self._kind = kind
        self._arrived_at = arrived_at
        self._began_at = began_at
        self._ended_at: float | None = None

    @property
    def ended(self) -> tuple[EngineName, float] | None:
        """Return the engine and when the call ended, if it has."""
        return None if self._ended_at is None else (self._engine, self._ended_at)

    def start(self) -> None:
        """Count it among those that run."""
        self._calls.running[id(self)] = None

    def end(self, ok: bool) -> None:
        """Report it, if it was counted; may be repeated. In a forked child it is the parent's."""
        calls = self._calls
        if calls.running.pop(id(self), self) is self or forks.number != calls.forks:
            return
        self._ended_at = calls.now()
        made = CallMade(
            self._request,
            self.name,
            self._engine,
            self._kind,
            self._arrived_at,
            self._began_at,
            self._ended_at,
            ok,
        )
        calls.mailbox.put_quietly((made, None))

"""Let borrowed calls run without asking, count them where they run, and report them once ended."""

from __future__ import annotations

from rag_accel.graph.kinds import PrimitiveKind
from rag_accel.scheduler.driver.mailbox import Mailbox
from rag_accel.scheduler.messages import CallMade, EngineName, RequestId


class BegunCall:
    """A borrowed call that need not wait for a permit; used for one call, by its caller.

    Args:
        request: whose call it is.
        name: of the call, unique within its request.
        arrived_at: when its request began, on the driver's clock in seconds.
    """

    __slots__ = ("_running", "arrived_at", "began_at", "engine", "kind", "name", "request")

    def __init__(
        self,
        request: RequestId,
        name: str,
        engine: EngineName,
        kind: PrimitiveKind,
        arrived_at: float,
    ) -> None:
        self.request = request
        self.name = name
        self.engine = engine
        self.kind = kind
        self.arrived_at = arrived_at
        self.began_at = 0.0
        self._running: dict[int, float] | None = None

    def begin(self, running: dict[int, float], now: float) -> None:
        """Count it among those that run."""
        self._running = running
        self.began_at = running[id(self)] = now

    def end(self) -> bool:
        """Count it no longer; tell whether it ran."""
        running, self._running = self._running, None
        return running is not None and running.pop(id(self), None) is not None

    def __del__(self) -> None:
        # Whoever was interrupted between beginning and calling has left nobody to end it.
        self.end()


class CallsAtOnce:
    """Count the calls that run, from any thread, and tell the core of those that have ended."""

    __slots__ = ("_mailbox", "_running")

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        #: since when each runs; single operations on a dict need no lock
        self._running: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, call: BegunCall, now: float) -> None:
        """Let a call begin."""
        call.begin(self._running, now)

    def end(self, call: BegunCall, now: float, ok: bool) -> None:
        """Note the end of a call; one that has ended already is not told again."""
        if call.end():
            made = CallMade(
                call.request,
                call.name,
                call.engine,
                call.kind,
                call.arrived_at,
                call.began_at,
                now,
                ok,
            )
            self._mailbox.put_quietly((made, None))

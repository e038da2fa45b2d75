"""Be a borrowed call that runs without having asked: counted where it runs, reported once ended."""

from __future__ import annotations

from rag_accel.graph.kinds import PrimitiveKind
from rag_accel.scheduler.messages import CallMade, EngineName, RequestId


class BegunCall:
    """A borrowed call that need not wait for a permit.

    Its caller keeps it before he lets it ``start``: whatever interrupts him, he can ``end`` it.

    Args:
        running: where it is counted while it runs, since when; single operations on a dict need
            no lock.
        request: whose call it is.
        name: of the call, unique within its request.
        arrived_at: when its request began, on the driver's clock in seconds.
        began_at: when it began, on the same clock.
    """

    __slots__ = ("_running", "arrived_at", "began_at", "engine", "kind", "name", "request")

    def __init__(
        self,
        running: dict[int, float],
        request: RequestId,
        name: str,
        engine: EngineName,
        kind: PrimitiveKind,
        arrived_at: float,
        began_at: float,
    ) -> None:
        self.request = request
        self.name = name
        self.engine = engine
        self.kind = kind
        self.arrived_at = arrived_at
        self.began_at = began_at
        self._running = running

    def start(self) -> None:
        """Count it among those that run."""
        self._running[id(self)] = self.began_at

    def end(self) -> bool:
        """Count it no longer; tell whether it was counted."""
        return self._running.pop(id(self), None) is not None

    def made(self, now: float, ok: bool) -> CallMade:
        """Return what is reported of it."""
        return CallMade(
            *(self.request, self.name, self.engine, self.kind),
            *(self.arrived_at, self.began_at, now, ok),
        )

"""Bounds of each connection: half-open ones, slow bodies and clients that do not read.

uvicorn bounds idle connections only. Here a sweep looks at all of them, some times a second, and
aborts those that have made no progress for too long; an aborted request is cancelled like one whose
client has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

from uvicorn.protocols.http.h11_impl import H11Protocol

from rag_accel.serving.serving_options import ServingOptions

Phase = Literal["head", "body", "answer", "unread", "closing"]
"""What a connection does: waits for a head, reads a body, answers, waits for its client to read."""


@dataclass(slots=True)
class ConnectionWatch:
    """The time each connection has spent in its phase; pure but for the aborts it asks for.

    Args:
        options: the times, and the most connections.
    """

    options: ServingOptions
    #: of each connection: its phase with the round, and since when
    _since: dict[Any, tuple[tuple[Phase, object], float]] = field(
        default_factory=dict[Any, "tuple[tuple[Phase, object], float]"]
    )

    def sweep(self, connections: Iterable[WatchedProtocol], now: float) -> int:
        """Abort those that are late, and the oldest without a request beyond the bound.

        Returns how many were aborted.
        """
        live = list(connections)
        before, self._since = self._since, {}
        late: list[WatchedProtocol] = []
        for connection in live:
            state = connection.phase()
            known = before.get(connection)
            since = known[1] if known is not None and known[0] == state else now
            self._since[connection] = (state, since)
            if now - since >= self._limit_s(state[0]):
                late.append(connection)
        for connection in late:
            del self._since[connection]
            connection.abort()
        return len(late) + self._shed(len(live) - len(late))

    def _shed(self, count: int) -> int:
        """Abort the oldest connections without a whole head, as many as there are too many."""
        excess = count - self.options.max_connections
        if excess <= 0:
            return 0
        waiting = [
            (since, connection.number, connection)
            for connection, (state, since) in self._since.items()
            if state[0] == "head"
        ]
        shed = [connection for _, _, connection in sorted(waiting)[:excess]]
        for connection in shed:
            del self._since[connection]
            connection.abort()
        return len(shed)

    def _limit_s(self, phase: Phase) -> float:
        options = self.options
        limits: dict[Phase, float] = {
            "head": options.head_timeout_s,
            "body": options.body_timeout_s,
            "answer": float("inf"),
            "unread": options.write_timeout_s,
            "closing": options.write_timeout_s,
        }
        return limits[phase]


class WatchedProtocol(H11Protocol):
    """A connection of uvicorn's whose phase can be asked for.

    Always h11's: with httptools, uvicorn does not bound the head of a request.
    """

    _numbers = count()

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - as uvicorn narrows it
        self.number = next(self._numbers)
        super().connection_made(transport)

    def phase(self) -> tuple[Phase, object]:
        """Return the phase, with the request or the bytes unread."""
        cycle: Any = self.cycle
        transport: Any = self.transport
        unread = transport.get_write_buffer_size()
        if transport.is_closing():
            return "closing", None
        is_serving = False
        if cycle is not None and not cycle.response_complete:
            if cycle.more_body and not cycle.response_started:
                return "body", cycle
            is_serving = True
        if unread and (not is_serving or self.flow.write_paused):
            return "unread", unread
        # The cycle itself, not its id: another request's could have the same.
        return ("answer" if is_serving else "head"), cycle

    def abort(self) -> None:
        self.transport.abort()

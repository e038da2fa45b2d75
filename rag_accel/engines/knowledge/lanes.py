"""Queries to one graph on a server: the requests that share one, and the queries under way at once.

Nothing here waits, sends or looks at a clock. Requests of one kind, view and tenant share a query:
those that came together, or while the lanes were taken. No request is delayed to fill a query: that
was measured to cost more than the round trips it saves. A request that needs a query alone, or that
shared a query which failed, waits for a side lane. Neither kind may take all lanes, so quick
requests never wait for slow ones, nor slow ones for quick ones without end.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from rag_accel.engine_api import EngineRequest, WorkId
from rag_accel.engines.knowledge.protocol import RemoteView

QueryKind = Literal["link", "hop"]


@dataclass(slots=True, eq=False)
class Query:
    """One query of requests that share it. Equal only to itself.

    Args:
        kind: whether it looks for entities or makes a hop.
        view: of the graph.
        work: the requests.
        key: equal for requests that may share it.
        at_side: whether it runs in a side lane.
        is_bounded: whether requests that need too many edges are given back.
        began: when it was sent.
        is_silent: whether it has been given up.
    """

    kind: QueryKind
    view: RemoteView
    work: list[EngineRequest]
    key: Hashable
    at_side: bool = False
    is_bounded: bool = True
    began: float = 0.0
    is_silent: bool = False


class QueryLanes:
    """The queries to one graph that wait and that are under way.

    Args:
        in_flight: most queries under way, at least 2. Of those given up, to which the server still
            says nothing, there may be as many besides.
    """

    def __init__(self, in_flight: int) -> None:
        self._in_flight = in_flight
        self._gathering: dict[Hashable, Query] = {}
        self._at_side: dict[Hashable, Query] = {}
        self._running: list[Query] = []

    @property
    def running(self) -> tuple[Query, ...]:
        """Return the queries under way, those given up among them, in the order of their start."""
        return tuple(self._running)

    @property
    def is_idle(self) -> bool:
        """Tell whether nothing waits and nothing is under way."""
        return not (self._gathering or self._at_side or self._running)

    @property
    def is_stuck(self) -> bool:
        """Tell whether so many queries were given up that no more are sent."""
        return sum(query.is_silent for query in self._running) >= self._in_flight

    def share(self, kind: QueryKind, view: RemoteView, request: EngineRequest) -> None:
        """Let a request share a query with others of its kind, view and tenant."""
        key = (kind, id(view), request.namespace)
        query = self._gathering.setdefault(key, Query(kind, view, [], key))
        query.work.append(request)

    def ask_alone(self, view: RemoteView, request: EngineRequest, edges: Hashable) -> None:
        """Ask for a request's edges alone, or with those of its tenant that need the same ones."""
        key = ("alone", id(view), request.namespace, edges)
        waiting = self._at_side.setdefault(key, Query("hop", view, [], key, True, False))
        waiting.work.append(request)

    def split(self, failed: Query, work: Sequence[EngineRequest]) -> None:
        """Ask again for requests of a query that failed, in as many parts as may be under way."""
        size = -(-len(work) // self._in_flight)
        for start in range(0, len(work), size):
            part = list(work[start : start + size])
            key = ("part", failed.key, part[0].id)
            self._at_side[key] = Query(failed.kind, failed.view, part, key, True)

    def start(self, now: float) -> list[Query]:
        """Return the queries to send now."""
        begun: list[Query] = []
        while (query := self._next()) is not None:
            query.began = now
            self._running.append(query)
            begun.append(query)
        return begun

    def end(self, query: Query) -> None:
        """Free the lane of a query that has ended."""
        self._running.remove(query)

    def give_up(self) -> list[EngineRequest]:
        """Return the requests that wait, and forget them."""
        waiting = [*self._gathering.values(), *self._at_side.values()]
        self._gathering.clear()
        self._at_side.clear()
        return [request for query in waiting for request in query.work]

    def cancel(self, ids: Set[WorkId]) -> None:
        """Forget work that waits; a query under way goes on."""
        for waiting in (self._gathering, self._at_side):
            for key, query in list(waiting.items()):
                query.work[:] = [request for request in query.work if request.id not in ids]
                if not query.work:
                    del waiting[key]

    def _next(self) -> Query | None:
        running = [query for query in self._running if not query.is_silent]
        if len(running) >= self._in_flight or self.is_stuck:
            return None
        at_side = sum(query.at_side for query in running)
        if self._gathering and len(running) - at_side < self._in_flight - 1:
            return self._gathering.pop(next(iter(self._gathering)))
        if self._at_side and at_side < self._in_flight - 1:
            return self._at_side.pop(next(iter(self._at_side)))
        return None

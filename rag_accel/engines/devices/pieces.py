"""The work of a device group, cut into pieces, and the order in which pieces start."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import floor

from rag_accel.engine_api import WorkId

PIECE_TOKENS = 1024
"""About the most tokens of a piece: from here on a token costs a CPU no less in a larger batch."""

AGEING_S = 2.0
"""After so many seconds without service the request that has waited longest precedes all others."""

LATE_SHARE = 0.125
"""The share of computed tokens that goes first to works that are late in any case."""

EQUAL_S = 0.05
"""Works whose latest ends differ by less are equally urgent; the shorter one goes first."""

NOMINAL_S = 1.0
"""The time from arrival to latest end that orders work which has none."""


@dataclass(slots=True, eq=False)
class WorkPiece:
    """Some texts of one work that are computed together. Compared by identity.

    Args:
        work: the id of the work.
        positions: which of its texts.
        cost: their estimated tokens.
    """

    work: WorkId
    positions: tuple[int, ...]
    cost: int
    #: names of members on which it failed, or that refused it for a while
    tried: set[str] = field(default_factory=set[str])
    #: it was in a step that failed, so nothing else joins it
    alone: bool = False
    #: how many members were lost with it
    losses: int = 0
    #: how often a member refused it for a while
    refusals: int = 0
    #: number of places that hold it: the queue, and each step that has not been given up
    places: int = 1
    is_queued: bool = True


@dataclass(slots=True, eq=False)
class DeviceWork:
    """One work of the group while it lives.

    Args:
        id: unique among live works.
        request: the request it belongs to.
        depth: the longest remaining path to the request's end.
        arrived_at: when the request arrived.
        latest_end: when the work must have ended, if ever.
        came_at: when it came itself.
        served_at: the same, later when a member last took of it.
        number: the order in which works came.
    """

    id: WorkId
    request: str
    depth: int
    arrived_at: float
    latest_end: float | None
    came_at: float
    served_at: float
    number: int
    cost: int = 0
    #: names of the members that may be given its texts; None for all
    admitted: frozenset[str] | None = None
    #: since when it is queued and no member that may take it is present
    alone_since: float | None = None
    #: a member has taken a piece of it
    is_begun: bool = False
    todo: deque[WorkPiece] = field(default_factory=deque[WorkPiece])
    #: pieces without a result, those that members have included
    left: set[WorkPiece] = field(default_factory=set[WorkPiece])

    def admits(self, member: str) -> bool:
        """Tell whether a member may be given its texts."""
        return self.admitted is None or member in self.admitted

    def is_late(self, soonest_end: float) -> bool:
        """Tell whether it is too late even in the step that ends first."""
        return self.latest_end is not None and self.latest_end < soonest_end


def cut(work: WorkId, costs: Sequence[int], most_texts: int) -> list[WorkPiece]:
    """Return the pieces of a work, the one with its longest texts first; each text is in one.

    Args:
        work: the work's id.
        costs: estimated tokens of each text.
        most_texts: most texts of a piece.
    """
    pieces: list[WorkPiece] = []
    positions: list[int] = []
    total = 0
    for position in sorted(range(len(costs)), key=lambda at: (-costs[at], at)):
        cost = costs[position]
        if positions and (total + cost > PIECE_TOKENS or len(positions) >= most_texts):
            pieces.append(WorkPiece(work, tuple(positions), total))
            positions, total = [], 0
        positions.append(position)
        total += cost
    if positions:
        pieces.append(WorkPiece(work, tuple(positions), total))
    return pieces


@dataclass(frozen=True, slots=True)
class Turn:
    """A queued piece whose turn it is.

    Args:
        work: its work.
        piece: the piece.
        goes_on: its work has been begun before.
        is_overdue: its work has waited longest without service, and too long, or is late and has
            its turn nevertheless.
    """

    work: DeviceWork
    piece: WorkPiece
    goes_on: bool
    is_overdue: bool = False

    @property
    def has_limit(self) -> bool:
        """Tell whether it comes behind others where it would be late."""
        has_end = self.work.latest_end is not None
        return has_end and not self.goes_on and not self.is_overdue


def by_urgency(
    work_items: Iterable[DeviceWork], now: float, soonest_s: float, late_tokens: float = 0.0
) -> Iterator[Turn]:
    """Yield the queued pieces, most urgent first.

    First comes the request that has waited longest without service, if it has waited ``AGEING_S``
    or more. Then comes the first piece of each request, by latest end; of equally urgent requests
    the deeper, then the shorter. Requests that cannot meet their deadline sort behind these, except
    those granted a share of ``late_tokens``, which sort before them. Further pieces of requests
    under way come last, in turns, so that a bulk load never holds up a query.

    Args:
        work_items: the live requests.
        now: the time.
        soonest_s: the seconds of the shortest possible step.
        late_tokens: what late works may take before others; the last of them may exceed it.
    """
    waiting = [work for work in work_items if work.todo]
    if not waiting:
        return
    overdue = min(waiting, key=lambda work: (work.served_at, work.number))
    if now - overdue.served_at < AGEING_S:
        overdue = None
    else:
        yield Turn(overdue, overdue.todo[0], False, is_overdue=True)
    soonest_end = now + soonest_s
    going_on: list[tuple[int, float, int, DeviceWork]] = []
    turns: list[Turn] = []
    preferred: list[Turn] = []
    for work in sorted(waiting, key=lambda work: _urgency(work, soonest_end)):
        if work is overdue or work.is_begun:
            going_on.append((int(work is overdue), work.served_at, work.number, work))
            continue
        if late_tokens > 0.0 and work.is_late(soonest_end):
            late_tokens -= work.todo[0].cost
            preferred.append(Turn(work, work.todo[0], False, is_overdue=True))
        else:
            turns.append(Turn(work, work.todo[0], False))
        if len(work.todo) > 1:
            going_on.append((1, work.served_at, work.number, work))
    yield from preferred
    yield from turns
    yield from _in_turns(going_on)


def _in_turns(work_items: list[tuple[int, float, int, DeviceWork]]) -> Iterator[Turn]:
    """Yield a piece of each work, then another of each, from place ``start`` of each on."""
    lines = [(deque(list(work.todo)[start:]), work) for start, _, _, work in sorted(work_items)]
    while lines:
        for line, work in lines:
            if line:
                yield Turn(work, line.popleft(), True)
        lines = [(line, work) for line, work in lines if line]


def _urgency(work: DeviceWork, soonest_end: float) -> tuple[bool, int, int, int, int]:
    latest = work.arrived_at + NOMINAL_S if work.latest_end is None else work.latest_end
    return work.is_late(soonest_end), floor(latest / EQUAL_S), -work.depth, work.cost, work.number

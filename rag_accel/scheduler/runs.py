"""Primitives and requests while they live.

States of a primitive:

    (none)     its request waits for admission
    waiting    some primitive it needs has not ended yet
    queued     it could run; its engine is busy, full, or about to be started
    following  an equal primitive runs; this one gets that result (single-flight)
    running    it is part of a step, or its caller holds a permit
    retrying   it has failed and waits for the time of its next attempt
    ended      its outcome is known and has been handed out

Irregular: a node is *abandoned* when its request is gone while an engine that cannot cancel still
works on it; it keeps its place in the batch until the step returns and its result is dropped. A
node is *solo* after a step that raised: it is retried alone, so that it cannot harm neighbours.
A node may enter its engine in parts: it is queued again after each but the last.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import takewhile
from typing import Literal, NamedTuple

from rag_accel.scheduler.commands import TooLate
from rag_accel.scheduler.learning import IdleTime
from rag_accel.scheduler.messages import EngineName, NodeKey, NodeSpec, OnFull, RequestId, WorkSlice

NodeState = Literal["waiting", "queued", "following", "running", "retrying", "ended"]


class LeafPlace(NamedTuple):
    """The place of a leaf in its program: the so-manieth on an engine."""

    engine: EngineName
    ordinal: int


@dataclass(slots=True)
class NodeRun:
    """The state of one primitive of one live request."""

    key: NodeKey
    spec: NodeSpec
    #: when its request arrived
    arrived_at: float
    #: an intercepted call: it ends by itself, and harms no other node of its request
    leaf: bool = False
    place: LeafPlace | None = None
    #: None only until its request is admitted
    state: NodeState | None = None
    #: primitives it still waits for; 0 iff not waiting
    blockers: int = 0
    dependents: list[str] = field(default_factory=list[str])
    queued_at: float = 0.0
    #: its turn in the queue: when it should begin at the latest
    due: float = 0.0
    #: its request's
    deadline: float | None = None
    started_at: float = 0.0
    #: items whose parts have ended, and items that its owned engine holds now
    taken: int = 0
    portion: int = 0
    #: its share of the steps it was in, in seconds: of all, and of those of this part
    served_s: float = 0.0
    part_s: float = 0.0
    #: retried alone after a step that raised
    solo: bool = False
    #: an output has reached the caller, so it can never be retried
    streamed: bool = False
    #: further attempts it has begun or waits for
    attempts: int = 0
    #: its stage's fallback runs: it ends with that
    is_replaced: bool = False
    #: no caller waits for it any more, but its engine still holds it
    abandoned: bool = False
    #: let in although its borrowed engine was full
    beyond: bool = False
    #: why it was not begun
    late: TooLate | None = None
    #: nodes that get this node's result, in the order in which they came
    followers: dict[NodeKey, None] = field(default_factory=dict[NodeKey, None])

    @property
    def left(self) -> int:
        """Return how many items no part has ended."""
        return self.spec.size - self.taken

    @property
    def part(self) -> WorkSlice | None:
        if self.portion == self.spec.size:
            return None
        stop = self.taken + self.portion
        return WorkSlice(self.key, self.taken, stop, stop == self.spec.size)


@dataclass(slots=True)
class RequestRun:
    """The state of one live request."""

    id: RequestId
    arrived_at: float
    deadline: float | None
    #: it ends as a whole when all its nodes have ended; otherwise each leaf ends by itself
    graph: bool
    #: it stays although it has no node: its program still runs
    open: bool = False
    admitted: bool = False
    #: admitted although there was no room
    beyond: bool = False
    on_full: OnFull = "wait"
    program: str = ""
    nodes: dict[str, NodeRun] = field(default_factory=dict[str, NodeRun])
    unfinished: int = 0
    #: where its last leaf ran and when that ended; what comes next is learned from these
    last_engine: EngineName | None = None
    idle_since: float = 0.0
    #: when its first leaves came, or began, with their sizes
    places: dict[LeafPlace, tuple[float, int]] = field(
        default_factory=dict[LeafPlace, tuple[float, int]]
    )
    #: a leaf has not ended well: how long the rest takes says nothing of other runs
    has_failed: bool = False


@dataclass(slots=True)
class EarlyWorks:
    """The early work of one engine (``early.py``)."""

    waiting: dict[NodeKey, None] = field(default_factory=dict[NodeKey, None])
    #: those that the engine has
    held: dict[NodeKey, None] = field(default_factory=dict[NodeKey, None])
    #: the engine's step is of early work
    is_stepping: bool = False
    #: that step takes idle time
    is_paid_for: bool = False
    idle: IdleTime = field(default_factory=IdleTime)

    def __bool__(self) -> bool:
        return bool(self.waiting or self.held)


#: a node that has waited as long as so many levels of depth are worth precedes everything
OVERDUE_LEVELS = 10

_Level = dict[NodeKey, NodeRun]
_Turn = tuple[float, float, RequestId]


class NodeQueue:
    """The queued nodes of one engine in the order of Teola Algorithm 2; a change costs O(log n)."""

    __slots__ = ("_levels", "_line", "_turns", "items", "nodes")

    def __init__(self) -> None:
        #: by the time they were queued
        self.nodes: dict[NodeKey, NodeRun] = {}
        #: of each request, its nodes by depth
        self._levels: dict[RequestId, dict[int, _Level]] = {}
        #: requests with a node here as (due, arrived_at, id), the least first; of several that
        #: its nodes have had since it came here, a request keeps the earliest
        self._line: list[_Turn] = []
        self._turns: dict[RequestId, _Turn] = {}
        #: sum of the items that the nodes have left
        self.items = 0

    def __len__(self) -> int:
        return len(self.nodes)

    def __contains__(self, key: NodeKey) -> bool:
        return key in self.nodes

    def __iter__(self) -> Iterator[NodeRun]:
        return iter(self.nodes.values())

    def get(self, key: NodeKey) -> NodeRun | None:
        return self.nodes.get(key)

    def has_request(self, request: RequestId) -> bool:
        return request in self._levels

    def add(self, node: NodeRun) -> None:
        """Append a node that is not here yet."""
        self.nodes[node.key] = node
        self.items += node.spec.size - node.taken
        request = node.key.request
        self._levels.setdefault(request, {}).setdefault(node.spec.depth, {})[node.key] = node
        turn, own = (node.due, node.arrived_at, request), self._turns.get(request)
        if own is None or turn < own:
            if own is not None:
                del self._line[bisect_left(self._line, own)]
            self._turns[request] = turn
            insort(self._line, turn)

    def discard(self, key: NodeKey) -> None:
        """Remove a node if it is here."""
        node = self.nodes.pop(key, None)
        if node is None:
            return
        self.items -= node.spec.size - node.taken
        levels = self._levels[key.request]
        level = levels[node.spec.depth]
        del level[key]
        if level:
            return
        del levels[node.spec.depth]
        if not levels:
            del self._levels[key.request]
            del self._line[bisect_left(self._line, self._turns.pop(key.request))]

    def by_urgency(self, now: float, ageing_s: float) -> Iterator[NodeRun]:
        """Yield the nodes that may start now, most urgent first; do not change the queue meanwhile.

        The request that is due first comes first, which is the oldest where none has a deadline
        (``deadlines.py``). Of each request only the nodes of its greatest depth: they unblock
        most. A shallower one joins once it has waited ``ageing_s`` for each level it lacks, and
        the longest waiting node precedes everything once it has waited ten levels, so that
        nothing starves behind an old request that never ends. (Differs: the paper has no ageing.)
        """
        overdue = self._overdue(now - OVERDUE_LEVELS * ageing_s)
        if overdue is not None:
            yield overdue
        for _, _, request in self._line:
            for node in self._eligible(request, now, ageing_s):
                if node is not overdue:
                    yield node

    def _overdue(self, since: float) -> NodeRun | None:
        first = next(iter(self.nodes.values()), None)
        return first if first is not None and first.queued_at <= since else None

    def _eligible(self, request: RequestId, now: float, ageing_s: float) -> Iterable[NodeRun]:
        levels = self._levels[request]
        if len(levels) == 1:
            return next(iter(levels.values())).values()
        deepest = max(levels)

        def has_aged(node: NodeRun) -> bool:
            return node.spec.depth + (now - node.queued_at) / ageing_s >= deepest

        # A level is ordered by time, so that the first too young node ends it.
        aged = [takewhile(has_aged, level.values()) for level in levels.values()]
        return merge(*aged, key=_turn)


def _turn(node: NodeRun) -> tuple[float, int]:
    """Of those that were queued at the same time, the deepest goes first."""
    return node.queued_at, -node.spec.depth

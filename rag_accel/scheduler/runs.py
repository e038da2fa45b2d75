"""Follow primitives and requests while they live.

States of a primitive:

    (none)     its request waits for admission
    waiting    some primitive it needs has not ended yet
    queued     it could run; its engine is busy, full, or about to be started
    following  an equal primitive runs; this one gets that result (single-flight)
    running    it is part of a step, or its caller holds a permit
    ended      its outcome is known and has been handed out

Irregular: a node is *abandoned* when its request is gone while an engine that cannot cancel still
works on it; it keeps its place in the batch until the step returns and its result is dropped. A
node is *solo* after a step that raised: it is retried alone, so that it cannot harm neighbours.
A node may enter its engine in parts: it is queued again after each but the last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rag_accel.scheduler.messages import EngineName, NodeKey, NodeSpec, OnFull, Part, RequestId

NodeState = Literal["waiting", "queued", "following", "running", "ended"]


@dataclass(slots=True)
class NodeRun:
    """Follow one primitive of one live request."""

    key: NodeKey
    spec: NodeSpec
    #: when its request arrived
    arrived_at: float
    #: an intercepted call: it ends by itself, and harms no other node of its request
    leaf: bool = False
    #: None only until its request is admitted
    state: NodeState | None = None
    #: primitives it still waits for; 0 iff not waiting
    blockers: int = 0
    dependents: list[str] = field(default_factory=list[str])
    queued_at: float = 0.0
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
    #: nobody waits for it any more, but its engine still holds it
    abandoned: bool = False
    #: nodes that get this node's result, in the order in which they came
    followers: dict[NodeKey, None] = field(default_factory=dict[NodeKey, None])

    @property
    def left(self) -> int:
        """Return how many items no part has ended."""
        return self.spec.size - self.taken

    @property
    def part(self) -> Part | None:
        """Return what of it is on its engine, ``None`` if that is all of it."""
        if self.portion == self.spec.size:
            return None
        stop = self.taken + self.portion
        return Part(self.key, self.taken, stop, stop == self.spec.size)


@dataclass(slots=True)
class RequestRun:
    """Follow one live request."""

    id: RequestId
    arrived_at: float
    deadline: float | None
    #: it ends as a whole when all its nodes have ended; otherwise each leaf ends by itself
    graph: bool
    #: it stays although it has no node: its program still runs
    open: bool = False
    admitted: bool = False
    on_full: OnFull = "wait"
    program: str = ""
    nodes: dict[str, NodeRun] = field(default_factory=dict[str, NodeRun])
    unfinished: int = 0
    #: where its last leaf ran and when that ended; what comes next is learned from these
    last_engine: EngineName | None = None
    idle_since: float = 0.0

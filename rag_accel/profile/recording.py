"""A recorded run: requests with their primitives, engines with their steps.

All times are seconds of the scheduler's clock. Nothing here knows what a primitive worked on:
there are names and numbers only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.graph.growth import stage_of
from rag_accel.telemetry.events import Member, Origin, Outcome, RequestId

LEAF = "leaf"
"""Stage of every intercepted call; its kind and its engine tell which call is meant."""

_OF_STAGE = re.compile(rf"(.+)\.({'|'.join(kind.lower() for kind in PrimitiveKind)})(?![a-z_])")
_OF_LEAF = re.compile(r"leaf\d+")


@dataclass(frozen=True, slots=True)
class RecordedPrimitive:
    """One primitive of one request as it ran; one that was retried runs from its last start.

    Args:
        after: primitives of the same request that it waited for.
        ready_s: when the last of them had ended, or it arrived.
        started_s: when its engine took it; for one that got the result of an equal one, its end.
        ended_s: when its outcome was known; while that is not, when the recording ended.
        depth: longest remaining path in primitives, as the scheduler was told.
        size: items it adds to a batch.
    """

    name: str
    kind: str
    engine: str
    after: tuple[str, ...]
    ready_s: float
    started_s: float
    ended_s: float
    outcome: Outcome | None = "done"
    depth: int = 1
    size: int = 1

    @property
    def stage(self) -> str:
        return stage_in(self.name)

    @property
    def queued_s(self) -> float:
        """Return how long it could have run and did not."""
        return self.started_s - self.ready_s

    @property
    def running_s(self) -> float:
        """Return how long its engine had it."""
        return self.ended_s - self.started_s


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request as it went.

    Args:
        origin: a program's calls wait for nothing that the scheduler knows of; their ``after``
            are the calls that had ended when they came, without those that these had followed.
        outcome: None while it lives.
        primitives: in the order in which they started.
        nested: calls from inside a graph's own functions; their time is part of the functions'.
        whole: neither its beginning nor its end is missing.
    """

    id: RequestId
    origin: Origin
    arrived_s: float
    ended_s: float
    outcome: Outcome | None
    primitives: tuple[RecordedPrimitive, ...]
    nested: tuple[RecordedPrimitive, ...] = ()
    whole: bool = True

    @property
    def makespan_s(self) -> float:
        """Return the seconds from arrival to end."""
        return self.ended_s - self.arrived_s


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step of an owned engine; ``ok`` is None if its end was not recorded."""

    engine: str
    step: int
    started_s: float
    ended_s: float
    members: tuple[Member, ...]
    threads: int
    ok: bool | None


@dataclass(frozen=True, slots=True)
class RecordedEngine:
    """An engine and its ``capacity``: items a step, or calls at once; None is unbounded."""

    name: str
    owned: bool = False
    stepped: bool = False
    capacity: int | None = None


@dataclass(frozen=True, slots=True)
class Recording:
    """All that is known; ``dropped`` older events had been overwritten by newer ones."""

    requests: tuple[RecordedRequest, ...] = ()
    steps: tuple[RecordedStep, ...] = ()
    engines: Mapping[str, RecordedEngine] = field(default_factory=dict[str, RecordedEngine])
    dropped: int = 0

    @property
    def done(self) -> tuple[RecordedRequest, ...]:
        """Return the requests that succeeded and of which nothing is missing."""
        return tuple(
            request for request in self.requests if request.whole and request.outcome == "done"
        )


def stage_in(primitive: str) -> str:
    """Return the stage named in a primitive's name; ``LEAF`` for an intercepted call."""
    if _OF_LEAF.fullmatch(primitive):
        return LEAF
    return stage_of(instance_in(primitive))


def instance_in(primitive: str) -> str:
    """Return the stage named in a primitive's name, of a loop with its turn."""
    found = _OF_STAGE.match(primitive)
    return found[1] if found else primitive


def kind_in(primitive: RecordedPrimitive) -> PrimitiveKind | None:
    """Return the kind of a primitive; where it was not recorded, by its name, if that has one."""
    found = _OF_STAGE.match(primitive.name)
    kind = primitive.kind or (found[2].upper() if found else "")
    return PrimitiveKind(kind) if kind in PrimitiveKind.__members__ else None

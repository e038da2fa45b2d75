"""Work in flight at replicas, and what a replica reports of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rag_accel.engine_api import EngineOutput, EngineRequest, Handle
from rag_accel.engines.ray.cluster import ActorCall
from rag_accel.engines.ray.messages import HostedWork
from rag_accel.errors import EngineError

if TYPE_CHECKING:
    from rag_accel.engines.ray.replica import Replica


@dataclass(slots=True, eq=False)
class HostedJob:
    """A request while it is in flight. Equal only to itself.

    Args:
        request: as it was submitted.
        work: as it was sent last.
        handle: the actor's own, with the replica and process that know it.
        is_suspect: whether an actor was lost with it, so that it is sent to one without other work.
    """

    request: EngineRequest
    work: HostedWork
    pin: PinnedHandle | None = None
    sent_at: float = 0.0
    call: ActorCall | None = None
    is_streamed: bool = False
    resends: int = 0
    is_suspect: bool = False


@dataclass(frozen=True, slots=True)
class PinnedHandle:
    """A handle of an actor's engine, with the one process that knows it."""

    replica: Replica
    incarnation: str
    handle: Handle


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """News of a replica.

    Args:
        replica: that reports.
        incarnation: the process that had the work.
        outputs: of work in flight, with their jobs.
        lost: jobs that no process works at any more.
        error: why they were lost.
    """

    replica: Replica
    incarnation: str = ""
    outputs: tuple[tuple[HostedJob, EngineOutput], ...] = ()
    lost: tuple[HostedJob, ...] = ()
    error: EngineError | None = None

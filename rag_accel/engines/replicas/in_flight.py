"""Work in flight at replicas, and what a replica reports of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from rag_accel.engine_api import EngineOutput, EngineRequest, Handle
from rag_accel.engines.replicas.messages import HostedWork
from rag_accel.engines.replicas.processes import HostCall
from rag_accel.errors import EngineError

if TYPE_CHECKING:
    from rag_accel.engines.replicas.replica import Replica

ReplicaState = Literal["starting", "ready", "draining", "lost", "closed"]


@dataclass(slots=True, eq=False)
class HostedJob:
    """A request while it is in flight. Equal only to itself.

    Args:
        request: as it was submitted.
        work: as it was sent last.
        pin: the handle of the process that has its state, for work that resumes.
        is_suspect: whether a process was lost with it: it is sent to one without other work.
    """

    request: EngineRequest
    work: HostedWork
    pin: PinnedHandle | None = None
    sent_at: float = 0.0
    call: HostCall | None = None
    is_streamed: bool = False
    resends: int = 0
    is_suspect: bool = False


@dataclass(frozen=True, slots=True)
class PinnedHandle:
    """A handle of a hosted engine, with the one process that knows it."""

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


@dataclass(frozen=True, slots=True, eq=False)
class Forgetting:
    """Texts of a namespace that a replica is to forget. Equal only to itself."""

    documents: tuple[str, ...]
    namespace: str


@dataclass(slots=True)
class ReplicaFlight:
    """The state shared by the threads of a replica; held under its lock."""

    state: ReplicaState = "starting"
    why: str = "its process is starting"
    jobs: dict[int, HostedJob] = field(default_factory=dict[int, HostedJob])
    #: not yet forgotten by the present process
    owed: list[Forgetting] = field(default_factory=list[Forgetting])
    idle_since: float = 0.0

"""The state of a replica that its threads share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rag_accel.engines.ray.jobs import HostedJob

ReplicaState = Literal["starting", "ready", "draining", "lost", "closed"]


@dataclass(frozen=True, slots=True, eq=False)
class Forgetting:
    """Texts of a namespace that a replica is to forget. Equal only to itself."""

    documents: tuple[str, ...]
    namespace: str


@dataclass(slots=True)
class ReplicaFlight:
    """The state shared by the threads of a replica; held under its lock."""

    state: ReplicaState = "starting"
    why: str = "its actor is starting"
    jobs: dict[int, HostedJob] = field(default_factory=dict[int, HostedJob])
    #: not yet forgotten by the present process
    owed: list[Forgetting] = field(default_factory=list[Forgetting])
    idle_since: float = 0.0

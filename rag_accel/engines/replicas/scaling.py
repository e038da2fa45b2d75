"""The number of replicas by the work in flight; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rag_accel.engines.replicas.replica import ReplicaState


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """The work of one replica.

    Args:
        state: of the replica.
        items: in flight.
        idle_s: seconds without any.
        is_pinned: whether somebody holds state that only this replica has.
    """

    state: ReplicaState
    items: int = 0
    idle_s: float = 0.0
    is_pinned: bool = False


@dataclass(frozen=True, slots=True)
class ScalingRule:
    """The bounds of the number of replicas.

    Args:
        least: of them.
        most: of them, those that were lost for good included.
        scale_at: items in flight for each replica from which there should be one more.
        idle_s: seconds without work after which there is one too many.
    """

    least: int
    most: int
    scale_at: int
    idle_s: float

    def wants_another(self, loads: Sequence[ReplicaLoad], waiting: int = 0) -> bool:
        """Tell whether to start a replica; ``waiting`` items have none yet.

        One at a time: while one starts, nobody knows what it will take over.
        """
        alive = [load for load in loads if load.state in ("ready", "starting")]
        there = sum(load.state not in ("closed", "draining") for load in loads)
        if there >= self.most or any(load.state == "starting" for load in alive):
            return False
        if not alive:
            return False  # the last one was lost for good: the next one would be, too
        return waiting + sum(load.items for load in alive) >= self.scale_at * len(alive)

    def surplus(self, loads: Sequence[ReplicaLoad]) -> int | None:
        """Return the place of a replica that may go: idle for long, and holding no state."""
        ready = [place for place, load in enumerate(loads) if load.state == "ready"]
        if len(ready) <= self.least:
            return None
        for place in reversed(ready):
            load = loads[place]
            if not load.items and not load.is_pinned and load.idle_s >= self.idle_s:
                return place
        return None

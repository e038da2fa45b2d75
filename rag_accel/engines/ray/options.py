"""The options of engines in Ray actors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rag_accel.engines.option_checks import check_least, check_whole
from rag_accel.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RayOptions:
    """The resources, number and bounds of the actors that host an engine.

    Args:
        num_cpus: cores that Ray sets aside for each actor; it computes on as many threads.
        num_gpus: GPUs that Ray sets aside for each actor; a share of one is allowed.
        resources: of Ray, by name, that each actor needs, such as ``{"shard-0": 1}``.
        replicas: actors at the start, and the least there are.
        max_replicas: most actors; None for ``replicas``, so that their number stays.
        scale_at: items in flight for each replica from which another one is started; None for what
            the engine puts into two steps.
        idle_s: seconds without work after which a replica beyond ``replicas`` is ended.
        max_restarts: how often Ray starts an actor again that died; forgotten after it has served
            for an hour.
        resends: how often work that was alone in an actor is sent again after that was lost; what
            was not alone is sent again in smaller parts until it is; 0 never.
        start_timeout_s: most seconds in which an actor must have made its engine.
        work_timeout_s: most seconds of a piece of work; then it ends in an error, or is sent again
            if it was not alone in a step that hangs.
        lost_after_s: an actor that is silent for so many seconds is ended, and started again.
        close_timeout_s: most seconds in which an actor frees its engine at the end.
        require_resources: refuse at once what no node of the cluster has room for; False where
            nodes are added on demand.
        runtime_env: of Ray, for the actors.
    """

    num_cpus: float = 1
    num_gpus: float = 0
    resources: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)
    replicas: int = 1
    max_replicas: int | None = None
    scale_at: int | None = None
    idle_s: float = 60.0
    max_restarts: int = 10
    resends: int = 1
    start_timeout_s: float = 120.0
    work_timeout_s: float = 600.0
    lost_after_s: float = 10.0
    close_timeout_s: float = 10.0
    require_resources: bool = True
    runtime_env: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        for name in _NEEDED:
            if getattr(self, name) is None:
                raise ConfigError(
                    "option out of range", where=f"RayOptions.{name}", found=None, valid="a number"
                )
        for name in ("replicas", "max_replicas", "scale_at"):
            check_whole(f"RayOptions.{name}", getattr(self, name), 1)
        for name in ("max_restarts", "resends"):
            check_whole(f"RayOptions.{name}", getattr(self, name), 0)
        for name in ("num_cpus", "num_gpus"):
            check_least(f"RayOptions.{name}", getattr(self, name), 0)
        for name in ("start_timeout_s", "work_timeout_s", "lost_after_s", "close_timeout_s"):
            check_least(f"RayOptions.{name}", getattr(self, name), 0.001)
        check_least("RayOptions.idle_s", self.idle_s, 0)
        self._check_resources()
        if self.most_replicas < self.replicas:
            raise ConfigError(
                "fewer replicas at most than at least",
                where="RayOptions.max_replicas",
                found=self.max_replicas,
                valid=f"from replicas={self.replicas}",
            )

    @property
    def most_replicas(self) -> int:
        """Return the most actors there are at a time."""
        return self.replicas if self.max_replicas is None else self.max_replicas

    @property
    def threads(self) -> int:
        """Return the threads on which an actor computes."""
        return max(1, math.ceil(self.num_cpus))

    @property
    def wanted(self) -> Mapping[str, float]:
        """Return what each actor needs, by Ray's names."""
        own = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources}
        return {name: amount for name, amount in own.items() if amount > 0}

    def _check_resources(self) -> None:
        if not isinstance(self.resources, Mapping):
            raise ConfigError(
                "resources are given by name",
                where="RayOptions.resources",
                found=type(self.resources).__name__,
                valid='a mapping, such as {"shard-0": 1}',
            )
        for name, amount in self.resources.items():
            if name in ("CPU", "GPU"):
                raise ConfigError(
                    "a resource with an option of its own",
                    where=f"RayOptions.resources[{name!r}]",
                    found=amount,
                    valid="num_cpus or num_gpus",
                )
            check_least(f"RayOptions.resources[{name!r}]", amount, 0)


_NEEDED = (
    *("num_cpus", "num_gpus", "replicas", "max_restarts", "resends"),
    *("idle_s", "start_timeout_s", "work_timeout_s", "lost_after_s", "close_timeout_s"),
)

"""The options of engines in Ray actors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rag_accel.engines.option_checks import check_least
from rag_accel.engines.replicas.options import ReplicaOptions
from rag_accel.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RayOptions(ReplicaOptions):
    """The resources, number and bounds of the actors that host an engine.

    Args:
        num_cpus: cores that Ray sets aside for each actor; it computes on as many threads.
        num_gpus: GPUs that Ray sets aside for each actor; a share of one is allowed.
        resources: of Ray, by name, that each actor needs, such as ``{"shard-0": 1}``.
        require_resources: refuse at once what no node of the cluster has room for; False where
            nodes are added on demand.
        runtime_env: of Ray, for the actors.
        others: by name, as of ``ReplicaOptions``.
    """

    num_cpus: float = 1
    num_gpus: float = 0
    resources: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)
    require_resources: bool = field(default=True, kw_only=True)
    runtime_env: Mapping[str, Any] | None = field(default=None, hash=False, kw_only=True)

    def __post_init__(self) -> None:
        ReplicaOptions.__post_init__(self)
        for name in ("num_cpus", "num_gpus"):
            check_least(f"RayOptions.{name}", getattr(self, name), 0)
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

    @property
    def threads(self) -> int:
        """Return the threads on which an actor computes."""
        return max(1, math.ceil(self.num_cpus))

    @property
    def wanted(self) -> Mapping[str, float]:
        """Return what each actor needs, by Ray's names."""
        own = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources}
        return {name: amount for name, amount in own.items() if amount > 0}

    @property
    def needs(self) -> str:
        wanted = ", ".join(f"{name}: {amount:g}" for name, amount in self.wanted.items())
        return f"room on a node ({wanted})"

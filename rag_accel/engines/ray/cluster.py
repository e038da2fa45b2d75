"""The cluster as the engines here see it: it hosts engines, and its nodes have room for some.

``library.py`` has the one of Ray; tests have one in their own process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rag_accel.engines.ray.options import RayOptions
from rag_accel.engines.replicas.processes import HostProcess
from rag_accel.engines.replicas.spec import EngineSpec
from rag_accel.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A machine of the cluster with all of its resources, used or not."""

    name: str
    resources: Mapping[str, float]


class Cluster(Protocol):
    """A cluster that takes actors."""

    def host(self, spec: EngineSpec, options: RayOptions) -> HostProcess:
        """Begin to start an actor that hosts an engine.

        Raises:
            HostGoneError: the cluster is gone.
        """
        ...

    def nodes(self) -> Sequence[ClusterNode]:
        """Return the machines that live now."""
        ...


def check_room(nodes: Sequence[ClusterNode], options: RayOptions, number: int, where: str) -> None:
    """Check that a number of actors fit the cluster, whatever else uses it now.

    Raises:
        ConfigError: they do not; names what each needs, and what every node has.
    """
    wanted = options.wanted
    room = sum(_number_that_fit(node.resources, wanted, number) for node in nodes)
    if room >= number:
        return
    raise ConfigError(
        "the cluster has no room for the actors of an engine",
        where=where,
        found=f"room for {room} of {number}, on "
        + (", ".join(f"{node.name} ({_told(node.resources)})" for node in nodes) or "no node"),
        valid=f"{_told(wanted) or 'nothing'} for each actor, on one node",
        hint="ask for less, or add nodes; where they are added on demand: require_resources=False",
    )


def _number_that_fit(has: Mapping[str, float], wanted: Mapping[str, float], most: int) -> int:
    numbers: Iterable[float] = (has.get(name, 0.0) / amount for name, amount in wanted.items())
    return int(min([most, *numbers]))


def _told(resources: Mapping[str, float]) -> str:
    named = {name: amount for name, amount in resources.items() if _is_told(name)}
    return ", ".join(f"{name}: {amount:g}" for name, amount in sorted(named.items()))


def _is_told(name: str) -> bool:
    return not name.startswith("node:") and not name.endswith("memory")

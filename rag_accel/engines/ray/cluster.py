"""The cluster as the engines here see it: it hosts, calls and ends actors.

``library.py`` has the one of Ray; tests have one in their own process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rag_accel.engines.ray.options import RayOptions
from rag_accel.engines.ray.spec import EngineSpec
from rag_accel.errors import ConfigError

#: Most seconds in which the answer of a call that has ended is fetched.
_FETCH_S = 1.0


class HostGoneError(Exception):
    """The process of an actor is gone, for now or for good.

    Args:
        text: what the cluster says of it.
        is_final: whether the cluster starts it no more.
    """

    def __init__(self, text: str, *, is_final: bool) -> None:
        super().__init__(text)
        self.is_final = is_final


class ActorCall(Protocol):
    """A call of a method of an actor, under way or ended."""

    def result(self, timeout_s: float) -> Any:
        """Return what the method returned.

        Raises:
            HostGoneError: the actor's process is gone.
            TimeoutError: it has not ended in time.
            Exception: what the method raised.
        """
        ...

    def is_done(self) -> bool:
        """Tell whether it has ended, in whatever way; at once."""
        ...


class HostActor(Protocol):
    """An actor that hosts an engine, see ``EngineHost``; may be used on any thread."""

    def call(self, method: str, *arguments: Any) -> ActorCall:
        """Begin a call of a method.

        Raises:
            HostGoneError: the cluster is gone.
        """
        ...

    def end(self, *, restart: bool) -> None:
        """End its process at once; the cluster starts another one where ``restart`` says so."""
        ...


def failure_of(call: ActorCall) -> Exception | None:
    """Return what a call raised; None where it has not, or goes on."""
    if not call.is_done():
        return None
    try:
        call.result(_FETCH_S)
    except Exception as error:
        return error
    return None


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A machine of the cluster with all of its resources, used or not."""

    name: str
    resources: Mapping[str, float]


class Cluster(Protocol):
    """A cluster that takes actors."""

    def host(self, spec: EngineSpec, options: RayOptions) -> HostActor:
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

"""Any owned engine in actors of a Ray cluster.

Ray is imported when the first engine is made. No call here may start a cluster: Ray does so by
itself where none runs, so each looks first.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from rag_accel.clock import Clock
from rag_accel.engine_api import Engine
from rag_accel.engines.option_checks import check_least
from rag_accel.engines.replicas.engine import HostedEngine
from rag_accel.engines.replicas.host import EngineHost, EngineSpec
from rag_accel.engines.replicas.processes import HostGoneError, HostProcess, ReplicaOptions
from rag_accel.errors import ConfigError, EngineError


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


#: Methods of one actor that run at a time: one waits for outputs, the others return soon.
_METHODS = 16


class RayCluster:
    """The cluster that this process is connected to; a ``Cluster``.

    Raises:
        ConfigError: it is connected to none.
        ImportError: Ray is missing; names the extra.
    """

    def __init__(self) -> None:
        self._ray = _import_ray()
        if not self._ray.is_initialized():
            raise ConfigError(
                "this process is connected to no Ray cluster, and none is started for it",
                where="ray",
                found="ray.is_initialized() is False",
                valid="a connected process",
                hint='call ray.init() for a cluster on this machine, or ray.init(address="auto") '
                "to join one that runs",
            )

    def host(self, spec: EngineSpec, options: RayOptions) -> RayActor:
        """Begin to start an actor; Ray waits silently until a node has room for it."""
        if not self._ray.is_initialized():
            raise HostGoneError("ray.shutdown() was called", is_final=True)
        given: dict[str, Any] = {
            "num_cpus": options.num_cpus,
            "num_gpus": options.num_gpus,
            "max_restarts": options.max_restarts,
            "max_task_retries": 0,  # work may have had effects: who sent it decides
            "max_concurrency": _METHODS,
        }
        if options.resources:
            given["resources"] = dict(options.resources)
        if options.runtime_env is not None:
            given["runtime_env"] = dict(options.runtime_env)
        try:
            remote = self._ray.remote(**given)(EngineHost)
            handle = remote.remote(spec, options.threads)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                "Ray refuses the options of an actor", where="RayOptions", found=str(error)
            ) from error
        return RayActor(self._ray, handle)

    def nodes(self) -> Sequence[ClusterNode]:
        return tuple(
            ClusterNode(str(node.get("NodeManagerAddress", "node")), dict(node["Resources"]))
            for node in self._ray.nodes()
            if node["Alive"]
        )


class RayActor:
    """An actor of Ray that hosts an engine; a ``HostProcess``."""

    def __init__(self, ray: Any, handle: Any) -> None:
        self._ray = ray
        self._handle = handle

    def call(self, method: str, *arguments: Any) -> RayCall:
        self._require_cluster()
        return RayCall(self._ray, getattr(self._handle, method).remote(*arguments))

    def end(self, *, restart: bool) -> None:
        if self._ray.is_initialized():
            self._ray.kill(self._handle, no_restart=not restart)

    def _require_cluster(self) -> None:
        if not self._ray.is_initialized():
            raise HostGoneError("ray.shutdown() was called", is_final=True)


class RayCall:
    """A call of a method of an actor of Ray; an ``HostCall``."""

    def __init__(self, ray: Any, ref: Any) -> None:
        self._ray = ray
        self._ref = ref

    def result(self, timeout_s: float) -> Any:
        ray, errors = self._ray, self._ray.exceptions
        if not ray.is_initialized():
            raise HostGoneError("ray.shutdown() was called", is_final=True)
        try:
            return ray.get(self._ref, timeout=timeout_s)
        except errors.GetTimeoutError as error:
            raise TimeoutError(str(error)) from error
        except errors.RayActorError as error:
            is_final = not isinstance(error, errors.ActorUnavailableError)
            raise HostGoneError(_first_lines(error), is_final=is_final) from error
        except errors.RayTaskError as error:
            if isinstance(error.cause, Exception):
                raise error.cause from error
            raise EngineError("an actor failed", where="ray", found=_first_lines(error)) from error
        except (errors.RayError, RuntimeError) as error:
            raise HostGoneError(_first_lines(error), is_final=not ray.is_initialized()) from error

    def is_done(self) -> bool:
        if not self._ray.is_initialized():
            return True
        done, _ = self._ray.wait([self._ref], timeout=0)
        return bool(done)


def _import_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ImportError(
            "engines in Ray actors need Ray: pip install 'rag-accel[ray]'", name="ray"
        ) from error


def _first_lines(error: BaseException, lines: int = 4) -> str:
    return f"{type(error).__name__}: " + " ".join(str(error).split("\n")[:lines])


class RayEngine(HostedEngine):
    """An engine that runs in one or more actors of a Ray cluster; see ``HostedEngine``.

    Args:
        factory: of the engine: a name of the entry points ``rag_accel.engines`` such as
            ``"embedding"``, a ``"module:attribute"``, or a function or class of a module.
        arguments: of the factory, by name. They travel pickled; name models and files rather than
            pass them.
        options: the resources, number and bounds of the actors.
        cluster: hosts the actors; by default the one that this process is connected to.
        clock: is that of ``EngineRequest.deadline``.

    Raises:
        ConfigError: an unknown factory, arguments that cannot be pickled, no cluster, one without
            room, or one with other versions.
        EngineError: an actor has not made its engine in time.
        ImportError: Ray is missing here, or a package on a node.
        Exception: whatever the factory raises.
    """

    def __init__(
        self,
        factory: str | Callable[..., Engine],
        arguments: Mapping[str, Any] | None = None,
        options: RayOptions | None = None,
        *,
        cluster: Cluster | None = None,
        clock: Clock | None = None,
    ) -> None:
        options = options or RayOptions()
        spec = EngineSpec.of(factory, arguments, "RayEngine")
        cluster = cluster or RayCluster()
        name = f"RayEngine({spec.factory!r})"
        if options.require_resources:
            check_room(cluster.nodes(), options, options.replicas, name)
        super().__init__(name, partial(cluster.host, spec, options), options, clock)

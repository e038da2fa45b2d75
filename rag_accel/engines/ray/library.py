"""Ray as a cluster for engines; the only module that imports it.

It is imported when the first engine is made. No call here may start a cluster: Ray does so by
itself where none runs, so each looks first.
"""

# Ray has an environment of its own.
# pyright: reportMissingImports=false
from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from rag_accel.engines.ray.cluster import ClusterNode
from rag_accel.engines.ray.options import RayOptions
from rag_accel.engines.replicas.host import EngineHost
from rag_accel.engines.replicas.processes import HostGoneError
from rag_accel.engines.replicas.spec import EngineSpec
from rag_accel.errors import ConfigError, EngineError

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

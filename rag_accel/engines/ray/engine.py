"""Any owned engine in actors of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from rag_accel.clock import Clock
from rag_accel.engine_api import Engine
from rag_accel.engines.ray.cluster import Cluster, check_room
from rag_accel.engines.ray.library import RayCluster
from rag_accel.engines.ray.options import RayOptions
from rag_accel.engines.replicas.engine import HostedEngine
from rag_accel.engines.replicas.spec import EngineSpec


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

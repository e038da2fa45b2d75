"""The profile of an engine whose steps run in actors."""

from __future__ import annotations

from dataclasses import replace

from rag_accel.engine_api import Capability, EngineProfile, LatencyModel, PrimitiveKind
from rag_accel.engines.ray.options import RayOptions
from rag_accel.errors import ConfigError

#: The steps for which work is in flight at a replica: one that runs, and the next one.
STEPS = 2
#: Seconds that a way to an actor and back takes about.
_HOP_S = 0.002
#: Abilities that tell how an engine uses the process it is in.
_LOCAL = frozenset({Capability.ENDS_IN_TIME, Capability.SHARES_CORES})


def profile_elsewhere(hosted: EngineProfile, options: RayOptions) -> EngineProfile:
    """Return the profile of an engine for the scheduler, which does not step it here.

    Raises:
        ConfigError: replicas of an engine that only ingests.
    """
    kinds = hosted.kinds
    if options.most_replicas > 1:
        kinds -= {PrimitiveKind.INGESTION}
        if not kinds:
            raise ConfigError(
                "an engine that only ingests has no replicas",
                where="RayOptions.replicas",
                found=options.most_replicas,
                valid="1",
                hint="each replica would know other documents; see RayShards",
            )
    latency = LatencyModel(hosted.latency.base_s + _HOP_S, hosted.latency.per_item_s)
    return replace(
        hosted,
        kinds=kinds,
        max_batch=hosted.max_batch * options.most_replicas * STEPS,
        latency=latency,
        max_threads=0,
        stepped=True,
        interruptible=True,
        capabilities=(hosted.capabilities - _LOCAL) | {Capability.BOUNDS_ITS_WORK},
    )

"""Describe engines that embed."""

from __future__ import annotations

from rag_accel.engine_api import Capability, EngineProfile, LatencyModel, PrimitiveKind


def embedding_profile(
    max_batch: int,
    max_threads: int,
    latency: LatencyModel,
    *,
    pure: bool,
    speculatable: bool,
    capabilities: frozenset[Capability] = frozenset(),
    speed_key: str = "",
    interruptible: bool = False,
) -> EngineProfile:
    """Describe an engine that embeds."""
    return EngineProfile(
        kinds=frozenset({PrimitiveKind.EMBEDDING}),
        max_batch=max_batch,
        latency=latency,
        max_threads=max_threads,
        stepped=True,
        interruptible=interruptible,
        speculatable=speculatable,
        pure=pure,
        capabilities=capabilities,
        speed_key=speed_key,
    )

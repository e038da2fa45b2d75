"""What a device group takes: its profile, and one submitted work until its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rag_accel.engine_api import (
    Capability,
    EngineProfile,
    EngineRequest,
    LatencyModel,
    PrimitiveKind,
)
from rag_accel.engines.devices.formed_texts import form_of
from rag_accel.engines.devices.joining import Joined
from rag_accel.engines.embedding.microbatches import Vector
from rag_accel.engines.embedding.sentence_encoder import Role
from rag_accel.engines.embedding.vector_cache import KnownTexts, VectorCache

MOST_WORK = 1 << 20
"""Texts that may be queued or computed at once."""


@dataclass(slots=True, eq=False)
class MemberJob:
    """One submitted work until its end is reported. Equal only to itself."""

    request: EngineRequest
    role: Role
    #: those that have to be computed, and their vectors
    texts: tuple[str, ...]
    vectors: Vector
    #: of all texts, where vectors are kept
    known: KnownTexts | None = None

    def value(self, kept: VectorCache | None) -> Vector:
        """Return the caller's vectors of all texts, and keep those that were computed."""
        form = form_of(self.request.payload)
        vectors = self._joined(kept)
        return vectors if form is None else form.finished(vectors)

    def _joined(self, kept: VectorCache | None) -> Vector:
        if self.known is None or kept is None or not self.known.keys:
            return self.vectors
        kept.keep(self.known, self.vectors)
        return np.array(self.known.joined(self.vectors))


def group_profile(joined: Sequence[Joined]) -> EngineProfile:
    """Return what a group of these members does."""
    return EngineProfile(
        kinds=frozenset({PrimitiveKind.EMBEDDING}),
        max_batch=MOST_WORK,
        latency=LatencyModel(joined[0].spec.beta, joined[0].spec.alpha),
        max_threads=sum(one.spec.max_threads for one in joined),
        stepped=True,
        interruptible=True,
        pure=True,
        capabilities=frozenset({Capability.BOUNDS_ITS_WORK}),
    )

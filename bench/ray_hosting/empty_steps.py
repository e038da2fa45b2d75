"""An engine whose steps compute nothing, for actors to make."""

from __future__ import annotations

from rag_accel.testing import FakeEngine


def empty_engine() -> FakeEngine:
    """Return an engine that answers at once."""
    return FakeEngine()

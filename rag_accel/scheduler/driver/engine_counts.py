"""Counters of engines, reported by their changes with each step."""

from __future__ import annotations

import logging

from rag_accel.engine_api import CountingEngine, Engine

logger = logging.getLogger("rag_accel.scheduler")


class EngineCounts:
    """Changes of one engine's own counters since the last report."""

    __slots__ = ("_engine", "_last")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine if isinstance(engine, CountingEngine) else None
        self._last: dict[str, int] = {}

    def changes(self) -> tuple[tuple[str, int], ...]:
        """Return the names whose counts have changed, and by how much; none where that fails."""
        if self._engine is None:
            return ()
        try:
            counts = dict(self._engine.counts)
        except Exception:
            logger.exception("an engine failed to say what it has counted")
            return ()
        last, self._last = self._last, counts
        changes = ((name, count - last.get(name, 0)) for name, count in counts.items())
        return tuple(change for change in changes if change[1])

"""Counters of stages that failed: further attempts and fallbacks, by stage."""

from __future__ import annotations

from typing import Final

from rag_accel.telemetry import Metrics

#: stages counted by name; further ones are counted together
MAX_STAGES: Final = 1024
OTHER_STAGES: Final = "(other stages)"


class StageCounters:
    """The counters ``retries`` and ``fallbacks`` of an accelerator's metrics, by stage."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._known: set[str] = set()

    def count(self, what: str, stage: str) -> None:
        """Count that something happened to a stage."""
        if stage not in self._known:
            if len(self._known) >= MAX_STAGES:
                stage = OTHER_STAGES
            self._known.add(stage)
        self._metrics.counter(what, stage).add()

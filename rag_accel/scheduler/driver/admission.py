"""Engines that carry so much that a new request would end too late are asked before it enters."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from rag_accel.engine_api import AdmittingEngine
from rag_accel.scheduler.arrivals import engines_of_new
from rag_accel.scheduler.driver.worker import EngineWorker
from rag_accel.scheduler.messages import EngineName, Event, LeafArrived, RequestArrived
from rag_accel.scheduler.state import SchedulerState

logger = logging.getLogger("rag_accel.scheduler")


def with_lateness(
    state: SchedulerState, event: Event, workers: Mapping[EngineName, EngineWorker]
) -> Event:
    """Return the event; one that asks for admission says how late its engines would be."""
    if not isinstance(event, LeafArrived | RequestArrived) or event.on_full != "raise":
        return event
    late = 0.0
    for name in engines_of_new(state, event):
        engine = workers[name].engine if name in workers else None
        if isinstance(engine, AdmittingEngine):
            late = max(late, _late_by_s(engine, state, event))
    return replace(event, late_by_s=late) if late > 0 else event


def _late_by_s(
    engine: AdmittingEngine, state: SchedulerState, event: LeafArrived | RequestArrived
) -> float:
    try:
        return engine.late_by_s(str(event.request), {str(request) for request in state.requests})
    except Exception:  # who cannot tell refuses nobody
        logger.exception("an engine failed to say how late a request would be")
        return 0.0

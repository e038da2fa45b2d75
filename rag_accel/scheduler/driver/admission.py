"""Admission by the engines whose backlog may be too long for another request."""

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


def with_refusal(
    state: SchedulerState, event: Event, workers: Mapping[EngineName, EngineWorker]
) -> Event:
    """Return the event; one that asks for admission says when to come again if refused."""
    if not isinstance(event, LeafArrived | RequestArrived) or event.on_full != "raise":
        return event
    again_s = 0.0
    for name in engines_of_new(state, event):
        engine = workers[name].engine if name in workers else None
        if isinstance(engine, AdmittingEngine):
            again_s = max(again_s, _retry_after_s(engine, state, event))
    return replace(event, retry_after_s=again_s) if again_s > 0 else event


def _retry_after_s(
    engine: AdmittingEngine, state: SchedulerState, event: LeafArrived | RequestArrived
) -> float:
    try:
        live = {str(request) for request in state.requests}
        return engine.retry_after_s(str(event.request), live)
    except Exception:  # who cannot tell refuses nobody
        logger.exception("an engine failed to say whether a request would be late")
        return 0.0

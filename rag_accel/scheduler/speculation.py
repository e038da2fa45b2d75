"""Speculation: a generation that begins with what a search has found so far (HedraRAG 4.3).

It runs as a leaf of its graph. Where the search ends with the same documents, the graph's own
primitive takes it over, and has saved the time since; else it is cancelled.

It begins where that is expected to save time: with the chance ``p`` that the documents are final,
the ``l`` seconds until that is known, the ``w`` seconds that are wasted otherwise, ``n`` neighbours
of ``m`` that the engine takes, and ``s`` seconds of a step that cannot be interrupted, where

    p * l > (1 - p) * (s / 2 + w * n / m)

(Differs: the paper admits speculations while fewer than a fixed number of requests run.)
"""

from __future__ import annotations

from rag_accel.scheduler.messages import LeafArrived, Stakes
from rag_accel.scheduler.state import EngineState, SchedulerState

#: less is not worth the work of beginning, in seconds
LEAST_GAIN_S = 0.0005


def may_speculate(state: SchedulerState, event: LeafArrived) -> bool:
    """Tell whether a leaf with stakes is to begin; it does so at once, or never."""
    run, stakes = state.requests.get(event.request), event.node.stakes
    engine = state.owned.get(event.node.engine)
    if run is None or not run.graph or engine is None or stakes is None:
        return False
    if not engine.stepped or engine.lost or engine.leaving or not _has_room(state, engine):
        return False
    return gain_s(engine, stakes) > LEAST_GAIN_S


def gain_s(engine: EngineState, stakes: Stakes) -> float:
    """Return the seconds that a speculation is expected to save all requests together."""
    # A step that waits for a server ends as soon as it is asked to.
    step_s = 0.0 if engine.bounds_its_work else engine.step_mean_s
    wasted_s = min(stakes.left_s, engine.node_mean_s or stakes.left_s)
    neighbours_s = wasted_s * len(engine.running) / engine.max_batch
    return stakes.chance * stakes.left_s - (1.0 - stakes.chance) * (step_s / 2 + neighbours_s)


def _has_room(state: SchedulerState, engine: EngineState) -> bool:
    """Tell whether an engine has places left, and the cores it computes on nothing else to do."""
    if engine.queue.nodes or len(engine.running) >= engine.max_batch:
        return False
    return engine.max_threads <= 0 or not any(
        other.max_threads > 0 and (other.step is not None or other.queue.nodes)
        for other in state.owned.values()
        if other is not engine
    )

"""Choose which queued primitives start together (Teola section 5.2, Algorithm 2)."""

from __future__ import annotations

from itertools import islice

from rag_accel.scheduler.runs import NodeRun
from rag_accel.scheduler.state import EngineState


def select_batch(engine: EngineState, now: float, ageing_s: float) -> list[NodeRun]:
    """Return the nodes that join an owned engine's next step, most urgent first.

    All it then holds fits ``max_batch`` items, except that one node larger than that goes alone.
    So does a node that is retried after a failed step: nobody joins it until it has ended.

    An engine that keeps work between steps may never be empty again by chance. What does not fit
    beside that work is passed by smaller ones only until it has waited ``ageing_s``.
    """
    held = engine.running.values()
    if any(node.solo for node in held):
        return []
    free = engine.max_batch - sum(node.spec.size for node in held)
    chosen: list[NodeRun] = []
    for node in engine.queue.by_urgency(now, ageing_s):
        if free <= 0:
            break
        alone = node.solo or node.spec.size > engine.max_batch
        if alone and not chosen and not held:
            return [node]
        if not alone and node.spec.size <= free:
            chosen.append(node)
            free -= node.spec.size
        elif held and now - node.queued_at >= ageing_s:
            break
    return chosen


def select_calls(engine: EngineState, now: float, ageing_s: float) -> list[NodeRun]:
    """Return the calls that a borrowed engine may run now, most urgent first."""
    if engine.max_concurrency is None:
        return list(engine.queue)
    free = max(0, engine.max_concurrency - len(engine.running))
    return list(islice(engine.queue.by_urgency(now, ageing_s), free))

"""Batches: the queued primitives that start together, and the items of each.

The choice is that of Teola (section 5.2, Algorithm 2), the parts are those of HedraRAG (section
4.2).
"""

from __future__ import annotations

from itertools import islice
from math import ceil
from typing import NamedTuple

from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.passes.split_nodes import SPLIT_KINDS
from rag_accel.scheduler.learning import bounded_budget_s, even_part, items_in
from rag_accel.scheduler.runs import NodeRun
from rag_accel.scheduler.state import CoreOptions, EngineState, SchedulerState


class Entry(NamedTuple):
    """The number of items of one node that enter a step."""

    node: NodeRun
    items: int


def select_batch(
    engine: EngineState, now: float, options: CoreOptions, budget_s: float | None
) -> list[Entry]:
    """Return what joins an owned engine's next step, most urgent first.

    All it then holds fits ``max_batch`` items, except that one node larger than that which cannot
    be cut goes alone. So does a node that is retried after a failed step: no other joins it until
    it has ended.

    Only one part of a node that is cut enters a step, and none before all that is left from the
    step before has ended: so the oldest large node goes on, younger small ones ride along, and
    none of them waits behind more than one part.

    An engine that keeps work between steps may never be empty again by chance. What does not fit
    next to that work is passed by smaller ones only until it has waited ``ageing_s``.

    Args:
        budget_s: how long the step should take; ``None`` if no other caller could be waiting.
    """
    held = engine.running.values()
    free = engine.max_batch
    for node in held:
        if node.solo:
            return []
        free -= node.portion
    if not engine.queue.nodes:
        return []
    chosen: list[Entry] = []
    may_cut = not held
    most_searches = _most_searches(engine, budget_s)
    for node in engine.queue.by_urgency(now, options.ageing_s):
        is_due = node.deadline is not None and node.spec.kind is PrimitiveKind.SEARCHING
        if free <= 0 or (is_due and len(held) + len(chosen) >= most_searches):
            break
        items = next_items(engine, node, options, budget_s)
        is_cut = items < node.spec.size
        if not chosen and not held and (node.solo or items > engine.max_batch):
            return [Entry(node, items)]
        if node.solo and not held and not may_cut:
            return [Entry(node, items)]  # else it would wait for all parts of an older node
        if not node.solo and items <= free and (may_cut or not is_cut):
            chosen.append(Entry(node, items))
            free -= items
            may_cut = may_cut and not is_cut
        elif held and now - node.queued_at >= options.ageing_s:
            break
    return chosen


def _most_searches(engine: EngineState, budget_s: float | None) -> int:
    """Return how many searches an engine holds before another with a deadline is to wait.

    An engine that keeps searches between steps reads one after the other. A search that waits in
    the queue instead is passed by those that are due sooner, and need not begin where it would end
    too late.
    """
    if budget_s is None or not engine.ends_in_time or engine.costs.service_s <= 0:
        return engine.max_batch
    return max(engine.max_threads, items_in(budget_s, engine.costs.service_s, engine.max_batch))


def next_items(
    engine: EngineState, node: NodeRun, options: CoreOptions, budget_s: float | None
) -> int:
    """Return how many items of a queued node may enter a step together.

    An engine that ends its steps in time cuts its work by itself. On another, what is no larger
    than usual, or has nobody waiting for it, is cut only if it is larger than any batch; where the
    engine keeps work between steps, half a batch: newcomers then find room at its next border.
    """
    is_whole = engine.ends_in_time or node.spec.kind not in SPLIT_KINDS
    if is_whole or not (options.split_nodes and engine.itemwise):
        return node.left
    most = max(1, engine.max_batch // 2) if engine.stepped else engine.max_batch
    if budget_s is not None and (node.taken or engine.costs.is_large(node.left)):
        seen_s = node.served_s / node.taken if node.taken else engine.costs.item_s
        item_s = seen_s or engine.per_item_s
        part_s = _part_budget_s(engine, item_s * node.spec.size, options)
        return even_part(node.left, items_in(part_s, item_s, most))
    if node.spec.provisional:
        most = min(most, max(LEAST_TOLD, ceil(node.spec.size / MOST_TOLD)))
    return even_part(node.left, most)


#: of a primitive whose results so far are wanted, the fewest items of a part and the most parts
LEAST_TOLD, MOST_TOLD = 8, 6


def _part_budget_s(engine: EngineState, service_s: float, options: CoreOptions) -> float:
    """Return how long a part of a node that takes ``service_s`` should be.

    Of the whole node: arrivals at an even rate meet the long ones more often than their number
    says.
    """
    beta_s = engine.costs.beta_s(engine.base_s)
    return bounded_budget_s(beta_s, service_s, options.slice_min_s, options.slice_max_s)


def select_calls(engine: EngineState, now: float, ageing_s: float) -> list[NodeRun]:
    """Return the calls that a borrowed engine may run now, most urgent first.

    After them come those that cannot wait, whatever the limit.
    """
    if engine.max_concurrency is None:
        return list(engine.queue)
    free = max(0, engine.max_concurrency - len(engine.running))
    chosen = {node.key: node for node in islice(engine.queue.by_urgency(now, ageing_s), free)}
    for key in engine.at_once:
        node = engine.queue.get(key)
        if node is not None:
            chosen[key] = node
    return list(chosen.values())


def grant_threads(state: SchedulerState, engine: EngineState) -> int:
    """Return how many threads the engine's next step may use; at least one.

    That is all it can use: short steps on all cores end sooner than at the same time on some of
    them. Only while an engine with work ``shares_cores``, each that computes here gets an equal
    share, and never a thread that another holds, except that a runnable step is never held back
    for want of a core: it then runs on one.
    """
    if engine.max_threads <= 0:
        return 1
    cores = state.options.cores
    others = [
        other for other in state.owned.values() if other is not engine and _claims_cores(other)
    ]
    if others and any(other.shares_cores for other in (engine, *others)):
        free = cores - sum(other.threads for other in others if other.step is not None)
        cores = min(cores // (len(others) + 1), free)
    return max(1, min(engine.max_threads, cores))


#: The share of ``step_timeout_s`` after which a step is to end. One that computes ends with the
#: piece it is at, which may take the rest of the time; one that waits ends at once.
_ASKED_BACK = 0.25
_ASKED_BACK_WAITING = 0.5
#: no thread can wait for ever, and an early return costs nothing
_LONGEST_WAIT_S = 3600.0


def step_time_s(options: CoreOptions, engine: EngineState, budget_s: float | None) -> float | None:
    """Return when a step should end at the latest, of an engine that can end one in time.

    It is asked back long before ``step_timeout_s``: so it is lost if it hangs, and not because its
    work takes long.
    """
    limits: list[float] = []
    if engine.ends_in_time:
        limits.append(_ASKED_BACK * options.step_timeout_s)
        if budget_s is not None:
            limits.append(budget_s)
    if engine.bounds_its_work:
        limits.append(_ASKED_BACK_WAITING * options.step_timeout_s)
    return min(*limits, _LONGEST_WAIT_S) if limits else None


def _claims_cores(engine: EngineState) -> bool:
    # Early work is over in a moment, and nothing is to be slower for it.
    is_stepping = engine.step is not None and not engine.early.is_stepping
    return engine.max_threads > 0 and (is_stepping or bool(engine.queue.nodes))

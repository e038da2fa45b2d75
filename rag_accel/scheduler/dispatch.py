"""Dispatch: permits for borrowed engines, steps for owned ones, and what the clock makes due."""

from __future__ import annotations

import heapq
from dataclasses import replace

from rag_accel.scheduler.batching import grant_threads, select_batch, select_calls, step_time_s
from rag_accel.scheduler.commands import Command, DropEngine, InterruptStep, StartCall, StartStep
from rag_accel.scheduler.completions import cancel_node, end_request
from rag_accel.scheduler.deadlines import begin_place, pop_too_late
from rag_accel.scheduler.early import drop_early, forget_early, paid_at, start_early
from rag_accel.scheduler.early_answers import drop_unasked
from rag_accel.scheduler.learning import COMPANY_S, bounded_budget_s
from rag_accel.scheduler.messages import NodeKey, StepId, WorkSlice
from rag_accel.scheduler.queueing import admit_pending
from rag_accel.scheduler.recovery import fall_back, retry_due
from rag_accel.scheduler.runs import NodeRun
from rag_accel.scheduler.state import EngineState, SchedulerState
from rag_accel.scheduler.wavefront import (
    enter_feeding,
    forget_gaps,
    may_still_come,
    newcomer_to_wait_for,
)


def dispatch(state: SchedulerState, now: float, out: list[Command]) -> None:
    """Start what can start on every engine that changed.

    All that has to end ends before anything starts, so that nothing is started for a request that
    is over by the end of the event.
    """
    _settle(state, now, out)
    if len(state.requests) > 1:
        state.company_at = now
    if state.unasked and state.live > 1:
        drop_unasked(state, now, out)
    for engine in state.owned.values():
        if engine.wait_until is not None and not may_still_come(state, engine.wait_for):
            state.dirty[engine.name] = None
    while state.dirty:
        engine = state.engines[next(iter(state.dirty))]
        del state.dirty[engine.name]
        if not engine.owned:
            _start_calls(state, engine, now, out)
        elif engine.step is not None:
            _interrupt(state, engine, now, out)
        else:
            _start_step(state, engine, now, out)
            if engine.leaving and engine.step is None and engine.wanted == 0:
                _drop(state, engine, out)
    if state.early:
        start_early(state, now, out)


def _drop(state: SchedulerState, engine: EngineState, out: list[Command]) -> None:
    """Forget an engine that has left and has nothing to do."""
    forget_early(state, engine, out)
    del state.engines[engine.name], state.owned[engine.name]
    forget_gaps(state, engine.name)
    out.append(DropEngine(engine.name))


def _settle(state: SchedulerState, now: float, out: list[Command]) -> None:
    """Admit waiting requests, and end queued nodes that are not to begin: each may lead to others.

    Those are nodes that cannot end in time, and nodes of lost engines.
    """
    if state.pending:
        admit_pending(state, now)
    while True:
        if (node := pop_too_late(state, now)) is not None:
            cancel_node(state, node, out)
            fall_back(state, node, "deadline", now, out)
        elif (engine := _lost_with_work(state)) is not None:
            _lose_queue(state, engine, now, out)
        else:
            return
        admit_pending(state, now)


def _lost_with_work(state: SchedulerState) -> EngineState | None:
    for engine in state.owned.values():
        if engine.lost and len(engine.queue):
            return engine
    return None


def _lose_queue(state: SchedulerState, engine: EngineState, now: float, out: list[Command]) -> None:
    for node in list(engine.queue):
        if node.state == "queued":
            cancel_node(state, node, out)
            fall_back(state, node, "lost", now, out)


def _start_calls(
    state: SchedulerState, engine: EngineState, now: float, out: list[Command]
) -> None:
    chosen = select_calls(engine, now, state.options.ageing_s)
    engine.at_once.clear()
    for node in chosen:
        node.beyond = not engine.has_room
        _enter(state, engine, node, now, "permit")
        out.append(StartCall(node.key, engine.name))
    if chosen and len(engine.queue):
        # Room may be left for those that were not of their request's greatest depth.
        state.dirty[engine.name] = None


def _interrupt(state: SchedulerState, engine: EngineState, now: float, out: list[Command]) -> None:
    """End a waiting step for work that can join it; once is enough for a step."""
    if engine.interrupted or not (engine.interruptible and engine.stepped):
        return
    if select_batch(engine, now, state.options, _budget_s(state, engine, now)):
        engine.interrupted = True
        out.append(InterruptStep(engine.name))


def _start_step(state: SchedulerState, engine: EngineState, now: float, out: list[Command]) -> None:
    if not engine.queue.nodes and not engine.running:
        engine.wait_until = engine.wait_for = None
        return
    if _waits(state, engine, now):
        return
    budget_s = _budget_s(state, engine, now)
    batch = select_batch(engine, now, state.options, budget_s)
    if not batch and not engine.running:
        return
    drop_early(engine, out)
    state.steps += 1
    keys: list[NodeKey] = []
    parts: list[WorkSlice] = []
    for node, items in batch:
        node.portion = items
        _enter(state, engine, node, now, f"step {state.steps}")
        keys.append(node.key)
        if items < node.spec.size and (part := node.part) is not None:
            parts.append(part)
    engine.step = StepId(state.steps)
    engine.step_started = now
    engine.hangs_at = now + state.options.step_timeout_s
    engine.step_items = 0
    for node in engine.running.values():
        engine.step_items += node.portion
    engine.threads = grant_threads(state, engine)
    time_s = step_time_s(state.options, engine, budget_s)
    out.append(
        StartStep(engine.name, engine.step, tuple(keys), engine.threads, time_s, tuple(parts))
    )


def _budget_s(state: SchedulerState, engine: EngineState, now: float) -> float | None:
    """Return how long a step should take: as long as it likes while only one request lives.

    Wherever another one is now, it may come here next; so may one that has just ended.
    """
    if now - state.company_at > COMPANY_S:
        return None
    options, costs = state.options, engine.costs
    beta_s = costs.beta_s(engine.base_s)
    return bounded_budget_s(beta_s, costs.service_s, options.slice_min_s, options.slice_max_s)


def _waits(state: SchedulerState, engine: EngineState, now: float) -> bool:
    """Decide whether an engine stays idle for a newcomer; only one that could take more does."""
    newcomer = None
    if 0 < engine.queue.items < engine.max_batch and not engine.running:
        newcomer = newcomer_to_wait_for(state, engine, now)
    if newcomer is None:
        engine.wait_until = engine.wait_for = None
        return False
    if engine.wait_until is None:
        engine.wait_from = now
    engine.wait_until, engine.wait_for = newcomer.at, newcomer.request
    return True


def _enter(state: SchedulerState, engine: EngineState, node: NodeRun, now: float, why: str) -> None:
    engine.queue.discard(node.key)
    engine.running[node.key] = node
    if not node.taken:
        node.started_at = now
        begin_place(state.requests[node.key.request], node, now)
    if node.dependents:
        enter_feeding(state, node)
    state.move(node, "running", why)


def look_at_clock(state: SchedulerState, now: float, out: list[Command]) -> None:
    """End what is past its deadline or hangs, and look again at engines whose wait is over."""
    _expire(state, now, out)
    retry_due(state, now)
    for engine in state.owned.values():
        if engine.wait_until is not None and engine.wait_until <= now:
            state.dirty[engine.name] = None
        if engine.hangs_at is not None and engine.hangs_at <= now:
            _lose(state, engine, now, out)


def next_wake(state: SchedulerState, now: float) -> float | None:
    """Return the earliest time at which something is due without an event."""
    times: list[float] = []
    if state.deadlines:
        times.append(state.deadlines[0][0])
    if state.latest_starts:
        times.append(state.latest_starts[0][0])
    if state.retries:
        times.append(state.retries[0][0])
    if state.early and (at := paid_at(state, now)) is not None:
        times.append(at)
    for engine in state.owned.values():
        if engine.wait_until is not None:
            times.append(engine.wait_until)
        if engine.hangs_at is not None:
            times.append(engine.hangs_at)
    return min(times, default=None)


def _expire(state: SchedulerState, now: float, out: list[Command]) -> None:
    while state.deadlines:
        at, request = state.deadlines[0]
        run = state.find(request)
        # The id of a request that has ended may live again, with another deadline.
        counts = run is not None and run.deadline == at
        if counts and at > now:
            return
        heapq.heappop(state.deadlines)
        if run is not None and counts:
            end_request(state, run, "deadline", None, now, out)


def _lose(state: SchedulerState, engine: EngineState, now: float, out: list[Command]) -> None:
    """Give up an engine that did not come back; it is used again once its step returns."""
    engine.lost = True
    engine.hangs_at = None
    state.dirty[engine.name] = None
    for node in list(engine.running.values()):
        if node.state == "running" and not node.abandoned:
            cancel_node(state, node, out)
            if node.spec.fallback is not None and node.abandoned:
                # It goes on with its fallback; what hangs is left behind in its name.
                left = replace(node, state="ended", dependents=[*node.dependents])
                engine.running[node.key], node.abandoned = left, False
            fall_back(state, node, "lost", now, out)

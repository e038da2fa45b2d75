"""Early work: what nobody waits for yet, and whose result is only ever looked up by its key.

A prompt's beginning in a prefix cache, a text's vector: whoever needs it later finds it or computes
it. So early work may be dropped at any time, and a failure of it concerns nobody. It belongs to a
live request and ends with it.

It runs behind all other work: on an engine that has nothing else, while no other engine computes on
the same cores, in steps of at most ``PIECE_S`` (or the shortest one that the engine knows), and any
other work of its engine drops it. Engines give it their recent idle time only (``IdleTime``), as
long as more than one request lives.
"""

from __future__ import annotations

from collections.abc import Callable

from rag_accel.scheduler.batching import grant_threads, step_time_s
from rag_accel.scheduler.commands import CancelWork, Command, EndEarly, StartStep
from rag_accel.scheduler.learning import COMPANY_S, items_in
from rag_accel.scheduler.messages import (
    EarlyArrived,
    NodeKey,
    Outcome,
    StepEnded,
    StepFailed,
    StepId,
)
from rag_accel.scheduler.state import EngineState, SchedulerState

#: how long a step of early work may keep other work waiting, in seconds
PIECE_S = 0.005
#: early works that wait for one engine; the oldest make room
MOST_WORKS = 64


def early_arrived(
    state: SchedulerState, event: EarlyArrived, now: float, out: list[Command]
) -> None:
    """Take in early work of a live request; any other is dropped at once."""
    engine = state.owned.get(event.engine)
    if engine is None or engine.leaving or engine.lost or event.node.request not in state.requests:
        out.append(EndEarly(event.node, event.engine, "closed" if state.closed else "cancelled"))
        return
    waiting = engine.early.waiting
    while len(waiting) >= MOST_WORKS:
        oldest = next(iter(waiting))
        del waiting[oldest]
        out.append(EndEarly(oldest, engine.name, "cancelled"))
    waiting[event.node] = None
    state.early[engine.name] = None


def start_early(state: SchedulerState, now: float, out: list[Command]) -> None:
    """Drop early work that is good for nothing any more, and start what may be started."""
    for name in list(state.early):
        engine = state.owned[name]
        is_gone = engine.lost or engine.leaving
        _drop(engine, out, lambda node, gone=is_gone: gone or node.request not in state.requests)
        if not engine.early:
            del state.early[name]
        elif _is_idle(state, engine) and _is_paid(state, engine, now):
            _start_step(state, engine, now, out)


def drop_early(engine: EngineState, out: list[Command]) -> None:
    """Drop the early work that an engine holds: other work needs it."""
    if engine.early.held:
        _drop(engine, out, lambda node: node in engine.early.held)


def forget_early(state: SchedulerState, engine: EngineState, out: list[Command]) -> None:
    """Drop all early work of an engine that leaves."""
    if state.early.pop(engine.name, False) is None:
        _drop(engine, out, lambda node: True)


def paid_at(state: SchedulerState, now: float) -> float | None:
    """Return when idle time has paid for early work that waits for nothing else."""
    times = [
        engine.early.idle.paid_at()
        for engine in map(state.owned.__getitem__, state.early)
        if _is_idle(state, engine)
    ]
    return max(now, min(times)) if times else None


def early_step_over(
    engine: EngineState, event: StepEnded | StepFailed, now: float, out: list[Command]
) -> None:
    """Take in what a step of early work has ended; errors concern nobody."""
    early = engine.early
    early.is_stepping = False
    if early.is_paid_for:
        early.idle.spend(now, event.duration_s)
    ended: dict[NodeKey, Outcome] = {}
    if isinstance(event, StepEnded):
        ends: dict[str, Outcome] = {"final": "done", "error": "failed"}
        ended = {one.node: ends[one.kind] for one in event.reports if one.kind in ends}
    if isinstance(event, StepFailed) or not engine.stepped:
        ended = {node: ended.get(node, "failed") for node in early.held}
    for node, outcome in ended.items():
        if node in early.held:
            del early.held[node]
            out.append(EndEarly(node, engine.name, outcome))


def _drop(engine: EngineState, out: list[Command], is_dropped: Callable[[NodeKey], bool]) -> None:
    held = tuple(filter(is_dropped, engine.early.held))
    dropped = (*held, *filter(is_dropped, engine.early.waiting))
    for node in dropped:
        engine.early.held.pop(node, None)
        engine.early.waiting.pop(node, None)
        out.append(EndEarly(node, engine.name, "cancelled"))
    if held and engine.stepped:
        out.append(CancelWork(engine.name, held))


def _is_idle(state: SchedulerState, engine: EngineState) -> bool:
    """Tell whether an engine has nothing else to do, nor any other that computes on its cores."""
    if engine.step is not None or engine.queue.nodes:
        return False
    return engine.max_threads <= 0 or not any(
        other.max_threads > 0 and (other.step is not None or other.queue.nodes)
        for other in state.owned.values()
    )


def _is_paid(state: SchedulerState, engine: EngineState, now: float) -> bool:
    """Tell whether recent idle time pays for early work; a lone request keeps nobody waiting."""
    engine.early.is_paid_for = now - state.company_at <= COMPANY_S
    return not engine.early.is_paid_for or engine.early.idle.at(now) > 0.0


def _start_step(state: SchedulerState, engine: EngineState, now: float, out: list[Command]) -> None:
    early = engine.early
    most = 1
    if not engine.stepped:
        item_s = engine.costs.item_s or engine.per_item_s
        most = items_in(PIECE_S, item_s, engine.max_batch) if item_s > 0 else 1
    added = tuple(early.waiting)[: most - len(early.held)]
    for node in added:
        del early.waiting[node]
        early.held[node] = None
    state.steps += 1
    early.is_stepping = True
    engine.step = StepId(state.steps)
    engine.step_started = now
    engine.hangs_at = now + state.options.step_timeout_s
    engine.threads = grant_threads(state, engine)
    time_s = step_time_s(state.options, engine, PIECE_S)
    out.append(StartStep(engine.name, engine.step, added, engine.threads, time_s, is_early=True))

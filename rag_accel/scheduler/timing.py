"""Do what time alone makes due: deadlines, ended waits, hung steps; say when to look again."""

from __future__ import annotations

import heapq

from rag_accel.scheduler.commands import Command
from rag_accel.scheduler.ending import cancel_node, end_node, end_request
from rag_accel.scheduler.state import EngineState, SchedulerState


def look_at_clock(state: SchedulerState, now: float, out: list[Command]) -> None:
    """End what is past its deadline or hangs, and look again at engines whose wait is over."""
    _expire(state, now, out)
    for engine in state.owned.values():
        if engine.wait_until is not None and engine.wait_until <= now:
            state.dirty[engine.name] = None
        hangs_at = _hangs_at(state, engine)
        if hangs_at is not None and hangs_at <= now:
            _lose(state, engine, now, out)


def next_wake(state: SchedulerState) -> float | None:
    """Return the earliest time at which something is due without an event."""
    times: list[float] = []
    if state.deadlines:
        times.append(state.deadlines[0][0])
    for engine in state.owned.values():
        if engine.wait_until is not None:
            times.append(engine.wait_until)
        hangs_at = _hangs_at(state, engine)
        if hangs_at is not None:
            times.append(hangs_at)
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


def _hangs_at(state: SchedulerState, engine: EngineState) -> float | None:
    if engine.step is None or engine.lost:
        return None
    return engine.step_started + state.options.hang_s


def _lose(state: SchedulerState, engine: EngineState, now: float, out: list[Command]) -> None:
    """Give up an engine that did not come back; it is used again once its step returns."""
    engine.lost = True
    state.dirty[engine.name] = None
    for node in list(engine.running.values()):
        if node.state == "running" and not node.abandoned:
            cancel_node(state, node, out)
            end_node(state, node, "lost", now, out)

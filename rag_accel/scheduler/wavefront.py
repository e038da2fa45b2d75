"""The wavefront: predicted next arrivals at an engine, and the decision to wait for them.

An engine is work-conserving: it starts what is queued at once. The one exception is a newcomer
that is already known to come, sooner than ``min(batch_wait, 5 % of the step)``: from the wavefront
of a graph, from earlier runs of the same program, or because callers whose work a step has
ended have been submitting their next at once (``ReturnRateLearner``).

The requests that may come are sorted by the time since when, so that a look costs O(log n) of the
live requests: those of one group are all expected the same time after it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeVar

from rag_accel.scheduler.learning import running_mean
from rag_accel.scheduler.messages import EngineName, NodeKey, RequestId
from rag_accel.scheduler.runs import NodeRun, RequestRun
from rag_accel.scheduler.state import EngineState, SchedulerState

WAIT_SHARE = 0.05
#: running nodes of one engine that are looked at to find one that leads here
LOOKAHEAD = 64

_Id = TypeVar("_Id", RequestId, NodeKey)


@dataclass(frozen=True, slots=True, order=True)
class Newcomer:
    """A prediction of when a request's next primitive will arrive."""

    at: float
    request: RequestId | None


def newcomer_to_wait_for(state: SchedulerState, engine: EngineState, now: float) -> Newcomer | None:
    """Return the next newcomer if an idle engine should wait for it, ``None`` to start now."""
    since = engine.wait_from if engine.wait_until is not None else now
    latest = since + longest_wait_s(state, engine.predict_s(engine.queue.items))
    if now >= latest:
        return None
    back_by = engine.returns.expected_by(now)
    if back_by is not None:
        return Newcomer(min(back_by, latest), None)
    if len(state.requests) < 2:
        return None
    found = _from_graphs(state, engine, now, latest) + _from_programs(state, engine, now, latest)
    return min(found, default=None)


def longest_wait_s(state: SchedulerState, step_s: float) -> float:
    """Return how long an engine may wait for a newcomer before a step of ``step_s`` seconds."""
    return min(state.options.batch_wait_s, WAIT_SHARE * step_s)


def may_still_come(state: SchedulerState, request: RequestId | None) -> bool:
    """Tell whether a request that an engine waits for can still get there."""
    run = state.requests.get(request) if request is not None else None
    return run is not None and (run.graph or run.unfinished == 0)


def learn_gap(state: SchedulerState, run: RequestRun, engine: EngineName, now: float) -> None:
    """Remember how long this program took from its last leaf (or its start) to an owned engine.

    Arrivals at other engines are not waited for.
    """
    if not run.program or engine not in state.owned:
        return
    gaps = state.times_of(run.program).gaps.setdefault(run.last_engine, {})
    gaps[engine] = running_mean(gaps.get(engine, 0.0), now - run.idle_since)


def forget_gaps(state: SchedulerState, engine: EngineName) -> None:
    """Forget how long programs took to, on and from an engine that is gone."""
    for program, times in list(state.programs.items()):
        times.gaps.pop(engine, None)
        for origin, gaps in list(times.gaps.items()):
            gaps.pop(engine, None)
            if not gaps:
                del times.gaps[origin]
        for place in [place for place in times.places if place.engine == engine]:
            del times.places[place]
        if not (times.gaps or times.places):
            del state.programs[program]


def forget_program(state: SchedulerState, program: str) -> None:
    """Forget how long a program took."""
    state.programs.pop(program, None)


def enter_idle(state: SchedulerState, run: RequestRun) -> None:
    """Note that an open program has no leaf now, and may bring its next one."""
    if run.program:
        line = state.idle.setdefault((run.program, run.last_engine), [])
        insort(line, (run.idle_since, run.id))


def leave_idle(state: SchedulerState, run: RequestRun) -> None:
    """Note that an open program brought its next leaf, or ended."""
    place = (run.program, run.last_engine)
    line = state.idle.get(place)
    if line == [(run.idle_since, run.id)]:
        del state.idle[place]
    elif line is not None:
        _remove(line, (run.idle_since, run.id))


def enter_feeding(state: SchedulerState, node: NodeRun) -> None:
    """Note that a node that others wait for runs now."""
    if node.dependents:
        insort(state.feeding.setdefault(node.spec.engine, []), (node.started_at, node.key))


def leave_feeding(state: SchedulerState, node: NodeRun) -> None:
    """Note that a node runs no longer."""
    if node.dependents and (line := state.feeding.get(node.spec.engine)) is not None:
        _remove(line, (node.started_at, node.key))
        if not line:
            del state.feeding[node.spec.engine]


def _remove(line: list[tuple[float, _Id]], entry: tuple[float, _Id]) -> None:
    place = bisect_left(line, entry)
    if place < len(line) and line[place] == entry:
        del line[place]


def _from_graphs(
    state: SchedulerState, engine: EngineState, now: float, latest: float
) -> list[Newcomer]:
    found: list[Newcomer] = []
    for name, line in state.feeding.items():
        mean_s = state.engines[name].node_mean_s
        if mean_s <= 0:
            continue
        first = bisect_right(line, now - mean_s, key=itemgetter(0))
        for since, key in line[first : first + LOOKAHEAD]:
            if since + mean_s > latest:
                break
            if since + mean_s > now and _leads_to(state, key, engine):
                found.append(Newcomer(since + mean_s, key.request))
                break
    return found


def _leads_to(state: SchedulerState, key: NodeKey, engine: EngineState) -> bool:
    """Tell whether a running node is the last thing that a node of this engine waits for.

    A request that already has a node in the queue is no newcomer: waiting would only delay it.
    """
    run = state.requests.get(key.request)
    if run is None or engine.queue.has_request(key.request):
        return False
    children = [run.nodes[name] for name in run.nodes[key.node].dependents]
    return any(child.spec.engine == engine.name and child.blockers == 1 for child in children)


def _from_programs(
    state: SchedulerState, engine: EngineState, now: float, latest: float
) -> list[Newcomer]:
    found: list[Newcomer] = []
    for (program, last_engine), line in state.idle.items():
        times = state.programs.get(program)
        gap = times.gaps.get(last_engine, {}).get(engine.name) if times is not None else None
        if gap is None:
            continue
        first = bisect_right(line, now - gap, key=itemgetter(0))
        if first < len(line):
            since, request = line[first]
            if now < since + gap <= latest:
                found.append(Newcomer(since + gap, request))
    return found

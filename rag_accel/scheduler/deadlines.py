"""Deadlines: the turn of a node by the time that is left for its plan, and nodes not begun.

A request is due at its deadline less what its node and all that follows it are expected to take:
of a graph the longest path, of a program the mean time from this leaf to the end in earlier runs.
All requests lose time equally fast, so the least slack is the earliest such time, and a queue never
has to be sorted again. A request without a deadline is due ``PATIENCE_S`` after its arrival, and no
other later than that, so that requests with a deadline keep none waiting for ever.

A node that would probably end too late goes behind all that would not: served at the last moment,
each would miss its deadline by a little. Searches wait for that in the queue rather than in their
engine, which gains nothing from many (``batching.py``).

A node that has not begun ends with the outcome ``deadline`` at once if its request cannot end in
time, by the least time that nodes like it and those behind it have taken lately: its engine is left
to others. A cache may know what embeddings and intercepted calls on borrowed engines are asked for,
so these count for nothing; but where there are other requests, runs of the same program, with what
they found in caches, show what a leaf and all that follows it take at the least.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from math import inf

from rag_accel.engine_api import PATIENCE_S
from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.scheduler.commands import TooLate
from rag_accel.scheduler.learning import LeastTime, running_mean
from rag_accel.scheduler.messages import EngineName, NodeKey
from rag_accel.scheduler.runs import LeafPlace, NodeRun, RequestRun
from rag_accel.scheduler.state import EngineState, LeafTimes, SchedulerState

#: an embedder may have the vectors already
_MAY_BE_CACHED = frozenset({PrimitiveKind.EMBEDDING})
#: leaves of a program's run that are told apart
MOST_PLACES = 64
#: times the expected seconds: a request that has less time left would probably be late
_PROBABLY = 1.25


def set_turn(state: SchedulerState, node: NodeRun, now: float) -> None:
    """Give a node that is about to be queued its turn, and the time after which it is too late."""
    run = state.requests[node.key.request]
    node.due, node.deadline = run.arrived_at + PATIENCE_S, run.deadline
    if run.deadline is None:
        return
    expected_s = rest_s(state, run, node)
    node.due = min(node.due, run.deadline - expected_s)
    least_s = _least_s(state, run, node, now)
    if expected_s > 0 or least_s is not None:
        _remember(state, run.deadline - max(_PROBABLY * expected_s, least_s or 0.0), node.key)


def rest_s(state: SchedulerState, run: RequestRun, node: NodeRun) -> float:
    """Return the expected seconds of a node and the longest path behind it."""
    learned = _place_times(state, run, node)
    if learned is not None and learned.rest_s > 0:
        return learned.rest_s
    return _longest_s(run, node, partial(_expected_s, state))


def _longest_s(run: RequestRun, node: NodeRun, seconds: Callable[[NodeRun], float]) -> float:
    """Return the seconds of the longest path that begins with a node."""
    known: dict[str, float] = {}
    stack = [node]
    while stack:
        top = stack[-1]
        children = [run.nodes[name] for name in top.dependents]
        waiting = [child for child in children if child.state != "ended"]
        unknown = [child for child in waiting if child.key.node not in known]
        if unknown:
            stack += unknown
            continue
        behind_s = max((known[child.key.node] for child in waiting), default=0.0)
        known[stack.pop().key.node] = behind_s + seconds(top)
    return known[node.key.node]


def _expected_s(state: SchedulerState, node: NodeRun) -> float:
    engine = state.engines[node.spec.engine]
    return engine.node_mean_s or engine.base_s + engine.per_item_s * node.spec.size


def learn_time(engine: EngineState, node: NodeRun, now: float) -> None:
    """Remember how long a node has taken that has ended well."""
    times = engine.least.setdefault(node.spec.kind, LeastTime())
    times.add(now - node.started_at, node.spec.size, now)


def enter_place(run: RequestRun, engine: EngineName, size: int, now: float) -> LeafPlace | None:
    """Note a program's call of an engine; return which leaf of its program that is."""
    if not run.program or len(run.places) >= MOST_PLACES:
        return None
    place = LeafPlace(engine, sum(place.engine == engine for place in run.places))
    run.places[place] = (now, size)
    return place


def begin_place(run: RequestRun, node: NodeRun, now: float) -> None:
    """Let the time of a program's leaf count from its begin: how long it waits is up to us."""
    if node.place is not None and node.place in run.places:
        run.places[node.place] = (now, node.spec.size)


def learn_rests(state: SchedulerState, run: RequestRun, now: float) -> None:
    """Remember how long a program took from each of its leaves to its end, if all ended well."""
    if not run.places or run.has_failed:
        return
    places = state.times_of(run.program).places
    for place, (began_at, size) in run.places.items():
        if place not in places and len(places) >= MOST_PLACES:
            continue
        times, took_s = places.setdefault(place, LeafTimes()), max(0.0, now - began_at)
        times.rest_s = running_mean(times.rest_s, took_s)
        times.least.add(took_s, size, now)


def _place_times(state: SchedulerState, run: RequestRun, node: NodeRun) -> LeafTimes | None:
    program = state.programs.get(run.program) if node.place is not None else None
    return program.places.get(node.place) if program is not None and node.place else None


def _least_s(state: SchedulerState, run: RequestRun, node: NodeRun, now: float) -> float | None:
    """Return the least seconds from a node's begin to its request's end; None if it is to begin."""
    times = _place_times(state, run, node) if state.live > 1 else None
    of_runs = times.least.of(node.spec.size, now) if times is not None else None
    if of_runs is not None:
        return of_runs

    def least_s(each: NodeRun) -> float:
        # A stage that is too late has its fallback, which may be quick.
        if _may_be_known(state, each) or (each is not node and each.spec.fallback is not None):
            return 0.0
        learned = state.engines[each.spec.engine].least.get(each.spec.kind)
        return (learned.of(each.spec.size, now) if learned is not None else None) or 0.0

    return _longest_s(run, node, least_s) or None


def _may_be_known(state: SchedulerState, node: NodeRun) -> bool:
    """Tell whether a cache may have what a node is asked for."""
    return node.spec.kind in _MAY_BE_CACHED or (
        node.leaf and not state.engines[node.spec.engine].owned
    )


def _remember(state: SchedulerState, at: float, key: NodeKey) -> None:
    """Remember when a node can no longer end in time; forget those that have begun."""
    if len(state.latest_starts) > 64 and len(state.latest_starts) > 2 * state.live:
        entries = state.latest_starts
        state.latest_starts = [entry for entry in entries if _not_begun(state, entry[1])]
        heapq.heapify(state.latest_starts)
    heapq.heappush(state.latest_starts, (at, key))


def _not_begun(state: SchedulerState, key: NodeKey) -> NodeRun | None:
    node = state.find_node(key)
    if node is None or node.state != "queued" or node.taken or node.solo:
        return None
    return node


def pop_too_late(state: SchedulerState, now: float) -> NodeRun | None:
    """Return a queued node that cannot end in time any more, with the reason; None if none is.

    Nodes that would probably be late are put behind the others of their queue meanwhile.
    """
    while state.latest_starts and state.latest_starts[0][0] <= now:
        node = _not_begun(state, heapq.heappop(state.latest_starts)[1])
        run = state.requests.get(node.key.request) if node is not None else None
        if node is None or run is None or run.deadline is None:
            continue
        # Others may have shown shorter times meanwhile.
        least_s = _least_s(state, run, node, now)
        latest = inf if least_s is None else run.deadline - least_s
        if least_s is not None and latest <= now:
            node.late = TooLate(least_s, max(0.0, run.deadline - now))
            return node
        probably = run.deadline - _PROBABLY * rest_s(state, run, node)
        last = run.arrived_at + PATIENCE_S
        if probably <= now and node.due < last:
            queue = state.engines[node.spec.engine].queue
            queue.discard(node.key)
            node.due, node.queued_at = last, now
            queue.add(node)
        if (at := probably if probably > now else latest) < inf:
            _remember(state, at, node.key)
    return None

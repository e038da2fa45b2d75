"""Every invariant of the core's state; a check costs O(everything): for tests and bug reports."""

from __future__ import annotations

from collections.abc import Iterator

from rag_accel.engine_api import PATIENCE_S
from rag_accel.errors import InvalidTransitionError
from rag_accel.scheduler.dispatch import next_wake
from rag_accel.scheduler.early import MOST_WORKS
from rag_accel.scheduler.messages import Event
from rag_accel.scheduler.runs import NodeRun, RequestRun
from rag_accel.scheduler.state import EngineState, SchedulerState


def validate(state: SchedulerState, event: Event | None = None) -> None:
    """Check the state as it must be after every event.

    Raises:
        InvalidTransitionError: naming the first broken invariant.
    """
    for problem in _problems(state):
        raise InvalidTransitionError(f"broken invariant: {problem}", found=repr(event))


def _problems(state: SchedulerState) -> Iterator[str]:
    for run in [*state.requests.values(), *state.pending.values()]:
        yield from _request_problems(state, run)
    for engine in state.engines.values():
        yield from _queue_problems(state, engine)
        yield from _slot_problems(state, engine)
        yield from _flight_problems(state, engine)
        yield from _early_problems(state, engine)
    yield from _unasked_problems(state)
    yield from _whole_problems(state)


def _unasked_problems(state: SchedulerState) -> Iterator[str]:
    if state.unasked and state.live > 1:
        yield "early leaves live in company"
    for key in state.unasked:
        node = state.find_node(key)
        if node is None or node.state == "ended" or not node.spec.early:
            yield f"{key} is no living early leaf"


def _request_problems(state: SchedulerState, run: RequestRun) -> Iterator[str]:
    live = [node for node in run.nodes.values() if node.state != "ended"]
    if run.unfinished != len(live):
        yield f"request {run.id} counts {run.unfinished} of {len(live)} unfinished"
    if not live and not run.open:
        yield f"request {run.id} has nothing left to do and was not ended"
    if run.admitted != (run.id in state.requests):
        yield f"request {run.id} is admitted={run.admitted} in the wrong table"
    entry = (run.idle_since, run.id)
    listed = entry in state.idle.get((run.program, run.last_engine), [])
    if listed != (run.admitted and run.open and not live and run.program != ""):
        yield f"request {run.id} is listed={listed} among idle programs"
    for node in live:
        yield from _node_problems(state, run, node)


def _node_problems(state: SchedulerState, run: RequestRun, node: NodeRun) -> Iterator[str]:
    engine = state.engines[node.spec.engine]
    if (node.state is not None) != run.admitted:
        yield f"{node.key} is {node.state} while its request is admitted={run.admitted}"
    if (node.state == "queued") != (node.key in engine.queue):
        yield f"{node.key} is {node.state}, unlike the queue of {engine.name} has it"
    if (node.state == "running") != (engine.running.get(node.key) is node):
        yield f"{node.key} is {node.state}, unlike {engine.name} has it"
    if run.admitted and (node.state == "waiting") != (node.blockers > 0):
        yield f"{node.key} is {node.state} with {node.blockers} blockers"
    if node.state == "retrying" and all(key != node.key for _, key in state.retries):
        yield f"{node.key} waits for an attempt that nothing begins"
    before = [run.nodes[name] for name in dict.fromkeys(node.spec.after) if name in run.nodes]
    if node.blockers != sum(other.state != "ended" for other in before):
        yield f"{node.key} counts {node.blockers} blockers of {node.spec.after}"
    if node.state == "following":
        leader = engine.flights.get(node.spec.share)
        holder = (engine.queue.get(leader) or engine.running.get(leader)) if leader else None
        if holder is None or node.key not in holder.followers:
            yield f"{node.key} follows no node"


def _queue_problems(state: SchedulerState, engine: EngineState) -> Iterator[str]:
    runs = [*state.requests.values(), *state.pending.values()]
    nodes = [node for run in runs for node in run.nodes.values() if node.state != "ended"]
    if engine.wanted != sum(node.spec.engine == engine.name for node in nodes):
        yield f"{engine.name} counts {engine.wanted} primitives that want it"
    for node in engine.queue:
        if node.portion or not 0 <= node.taken < max(1, node.spec.size):
            yield f"{node.key} has {node.portion} items elsewhere and {node.left} left"
        if node.state != "queued" or node.key.request not in state.requests:
            yield f"{node.key} is {node.state} in the queue of {engine.name}"
    if engine.queue.items != sum(node.left for node in engine.queue):
        yield f"the queue of {engine.name} counts {engine.queue.items} items"
    yield from _turn_problems(state, engine)
    ordered = list(engine.queue.by_urgency(float("inf"), 1.0))
    if len(ordered) != len(engine.queue) or {n.key for n in ordered} != {
        n.key for n in engine.queue
    }:
        yield f"the order of {engine.name} differs from its queue"


def _turn_problems(state: SchedulerState, engine: EngineState) -> Iterator[str]:
    queue = engine.queue
    if queue._line != sorted(queue._turns.values()):
        yield f"the turns of {engine.name} are out of order"
    if queue._turns.keys() != {node.key.request for node in queue}:
        yield f"{engine.name} has turns of requests without a node in its queue"
    for node in queue:
        run = state.requests.get(node.key.request)
        latest = run.arrived_at + PATIENCE_S if run is not None else node.due
        if node.due > latest or (run is not None and run.deadline is None and node.due != latest):
            yield f"{node.key} is due at {node.due}, and at {latest} at the latest"
        if node.due < queue._turns[node.key.request][0]:
            yield f"{node.key} is due before the turn of its request"


def _slot_problems(state: SchedulerState, engine: EngineState) -> Iterator[str]:
    waits = engine.wait_until is not None
    for key, node in engine.running.items():
        if node.state != "running" and not node.abandoned:
            yield f"{key} is {node.state} on {engine.name}"
        if engine.owned and not min(1, node.left) <= node.portion <= node.left:
            yield f"{key} has {node.portion} of {node.left} items on {engine.name}"
    if sum(node.part is not None for node in engine.running.values() if engine.owned) > 1:
        yield f"{engine.name} holds parts of two nodes"
    if engine.owned and engine.step is None and engine.running:
        yield f"{engine.name} holds work outside a step"
    if engine.owned and engine.step is None and engine.threads:
        yield f"{engine.name} holds threads outside a step"
    if engine.owned and engine.step is None and len(engine.queue) and not waits:
        yield f"{engine.name} is idle although work is queued"
    if waits and (engine.step is not None or not len(engine.queue)):
        yield f"{engine.name} waits although it is not idle, or for nothing"
    limit = engine.max_concurrency
    within = sum(not node.beyond for node in engine.running.values())
    if limit is not None and within > limit:
        yield f"{engine.name} runs {within} of at most {limit}"
    if engine.at_once:
        yield f"{engine.name} holds calls back that cannot wait"
    if not engine.owned and len(engine.queue) and (limit is None or len(engine.running) < limit):
        yield f"{engine.name} holds a call back although there is room"
    if engine.lost and (len(engine.queue) or engine.step is None):
        yield f"{engine.name} is lost, yet has a queue or no step"
    feeding = [(n.started_at, n.key) for n in engine.running.values() if n.dependents]
    if not set(state.feeding.get(engine.name, [])) <= set(feeding):
        yield f"{engine.name} does not run what others are said to wait for"


def _early_problems(state: SchedulerState, engine: EngineState) -> Iterator[str]:
    early = engine.early
    if bool(early) != (engine.name in state.early):
        yield f"{engine.name} has early work, unlike the list of those that do"
    if early.is_stepping and (engine.step is None or engine.running):
        yield f"{engine.name} steps early work outside a step, or other work with it"
    if early.held and engine.step is not None and not early.is_stepping:
        yield f"{engine.name} holds early work in a step of other work"
    for node in (*early.waiting, *early.held):
        if node.request not in state.requests:
            yield f"the request of the early {node} does not live"
    if len(early.waiting) > MOST_WORKS:
        yield f"{len(early.waiting)} early works wait for {engine.name}"


def _flight_problems(state: SchedulerState, engine: EngineState) -> Iterator[str]:
    for share, key in engine.flights.items():
        holder = engine.queue.get(key) or engine.running.get(key)
        if holder is None or holder.abandoned:
            yield f"the flight {share!r} on {engine.name} has no leader"
            continue
        for follower in holder.followers:
            run = state.requests.get(follower.request)
            node = run.nodes.get(follower.node) if run else None
            if node is None or node.state != "following":
                yield f"{follower} follows {key} no longer"


def _whole_problems(state: SchedulerState) -> Iterator[str]:
    if state.dirty:
        yield f"{list(state.dirty)} were not looked at"
    within = sum(not run.beyond for run in state.requests.values())
    if within > state.options.max_requests:
        yield f"{within} requests are admitted"
    if state.pending and state.has_room:
        yield f"{len(state.pending)} requests wait although there is room"
    listed = sum(len(line) for line in state.idle.values())
    if listed > sum(run.open for run in state.requests.values()):
        yield f"{listed} programs are listed as idle"
    due = next_wake(state, state.wake_at or 0.0)
    if due is not None and (state.wake_at is None or state.wake_at > due):
        yield f"something is due at {due}, and the next look is at {state.wake_at}"

"""Ends of primitives and requests: outcomes, followers, cancellation, dependents."""

from __future__ import annotations

from rag_accel.scheduler.commands import CancelWork, Command, EndNode, EndRequest
from rag_accel.scheduler.messages import NodeKey, Outcome
from rag_accel.scheduler.queueing import ready
from rag_accel.scheduler.runs import NodeRun, RequestRun
from rag_accel.scheduler.state import EngineState, SchedulerState
from rag_accel.scheduler.wavefront import enter_idle, leave_feeding, leave_idle


def leave_engine(
    state: SchedulerState, engine: EngineState, node: NodeRun, keep_flight: bool = False
) -> None:
    """Take a node off its engine, and its flight with it unless it will be retried."""
    if engine.running.pop(node.key, None) is None:
        engine.queue.discard(node.key)
    else:
        node.portion = 0
        if node.dependents:
            leave_feeding(state, node)
    if node.spec.share is not None and not keep_flight:
        _land(engine, node)


def _land(engine: EngineState, node: NodeRun) -> None:
    share = node.spec.share
    if share is not None and engine.flights.get(share) == node.key:
        del engine.flights[share]


def end_node(
    state: SchedulerState, node: NodeRun, outcome: Outcome, now: float, out: list[Command]
) -> None:
    """End one node, share or deliver its result, and release its dependents."""
    followers, node.followers = node.followers, {}
    _finish(state, node, outcome, None, now, out)
    if not followers:
        return
    if outcome == "done":
        for follower in _living(state, followers):
            _finish(state, follower, "done", node.key, now, out)
    else:
        promote(state, followers, now)


def _finish(
    state: SchedulerState,
    node: NodeRun,
    outcome: Outcome,
    leader: NodeKey | None,
    now: float,
    out: list[Command],
) -> None:
    run = state.requests.get(node.key.request) or state.pending[node.key.request]
    state.move(node, "ended", outcome)
    run.unfinished -= 1
    out.append(EndNode(node.key, outcome, leader, late=node.late))
    if node.leaf:
        del run.nodes[node.key.node]
        run.has_failed = run.has_failed or outcome != "done"
        run.last_engine, run.idle_since = node.spec.engine, now
    elif outcome != "done":
        end_request(state, run, outcome, node.key, now, out)
        return
    replaced: NodeRun | None = None
    for name in node.dependents:
        child = run.nodes[name]
        child.blockers -= 1
        if child.blockers == 0 and child.is_replaced:
            replaced = child
        elif child.blockers == 0:
            ready(state, child, now)
    if replaced is not None:
        _finish(state, replaced, "done", None, now, out)
    elif run.unfinished == 0:
        _rest(state, run, out)


def _rest(state: SchedulerState, run: RequestRun, out: list[Command]) -> None:
    if run.open:
        if run.admitted:
            enter_idle(state, run)
        return
    state.forget(run.id)
    if run.graph:
        out.append(EndRequest(run.id, "done"))


def end_request(
    state: SchedulerState,
    run: RequestRun,
    outcome: Outcome,
    cause: NodeKey | None,
    now: float,
    out: list[Command],
) -> None:
    """End a request as a whole: what is queued is dropped, what runs is cancelled or abandoned.

    A graph ends with one ``EndRequest``; intercepted leaves end one by one. A leaf inside a graph
    that ends because of one of its nodes (``cause``) has not failed itself: it is cancelled.
    """
    state.forget(run.id)
    leave_idle(state, run)
    for node in list(run.nodes.values()):
        if node.state == "ended":
            continue
        cancel_node(state, node, out)
        followers, node.followers = node.followers, {}
        state.move(node, "ended", outcome)
        run.unfinished -= 1
        if node.leaf:
            out.append(EndNode(node.key, "cancelled" if cause is not None else outcome))
        promote(state, followers, now)
    if run.graph:
        out.append(EndRequest(run.id, outcome, cause))


def cancel_node(state: SchedulerState, node: NodeRun, out: list[Command]) -> None:
    """Take a node out of its queue, or off its engine as far as the engine allows."""
    engine = state.engines[node.spec.engine]
    state.dirty[engine.name] = None
    if node.state == "queued":
        leave_engine(state, engine, node)
        forget_parts(engine, node, out)
    elif node.state == "following":
        _unfollow(engine, node)
    elif node.state == "running" and engine.owned and engine.stepped:
        leave_engine(state, engine, node)
        out.append(CancelWork(engine.name, (node.key,)))
    elif node.state == "running":
        _land(engine, node)
        node.abandoned = True


def forget_parts(engine: EngineState, node: NodeRun, out: list[Command]) -> None:
    """Drop the results of the parts of a node that will have no other part."""
    if node.taken:
        out.append(CancelWork(engine.name, (node.key,)))


def _unfollow(engine: EngineState, node: NodeRun) -> None:
    leader = engine.flights.get(node.spec.share) if node.spec.share is not None else None
    holder = (engine.queue.get(leader) or engine.running.get(leader)) if leader else None
    if holder is not None:
        holder.followers.pop(node.key, None)


def promote(state: SchedulerState, followers: dict[NodeKey, None], now: float) -> None:
    """Let the first living follower run for itself, with the others behind it."""
    for follower in _living(state, followers):
        ready(state, follower, now)


def _living(state: SchedulerState, keys: dict[NodeKey, None]) -> list[NodeRun]:
    found: list[NodeRun] = []
    for key in keys:
        run = state.find(key.request)
        node = run.nodes.get(key.node) if run else None
        if node is not None and node.state == "following":
            found.append(node)
    return found

"""Ends of steps, calls, primitives and requests: outcomes, followers, cancellation, dependents."""

from __future__ import annotations

from rag_accel.errors import InvalidTransitionError
from rag_accel.scheduler.commands import CancelWork, Command, EndNode, EndRequest
from rag_accel.scheduler.learning import running_mean
from rag_accel.scheduler.messages import CallEnded, NodeKey, Outcome, StepEnded, StepFailed
from rag_accel.scheduler.queueing import append_nodes, ready
from rag_accel.scheduler.runs import NodeRun, RequestRun
from rag_accel.scheduler.state import EngineState, SchedulerState
from rag_accel.scheduler.wavefront import enter_idle, leave_feeding, leave_idle, longest_wait_s


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
        _promote(state, followers, now)


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
    out.append(EndNode(node.key, outcome, leader))
    if node.leaf:
        del run.nodes[node.key.node]
        run.last_engine, run.idle_since = node.spec.engine, now
    elif outcome != "done":
        end_request(state, run, outcome, node.key, now, out)
        return
    for name in node.dependents:
        child = run.nodes[name]
        child.blockers -= 1
        if child.blockers == 0:
            ready(state, child, now)
    if run.unfinished == 0:
        _rest(state, run, out)


def _rest(state: SchedulerState, run: RequestRun, out: list[Command]) -> None:
    """End a request that has nothing left to do; an open program becomes idle instead."""
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
        _promote(state, followers, now)
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


def _promote(state: SchedulerState, followers: dict[NodeKey, None], now: float) -> None:
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


def step_ended(state: SchedulerState, event: StepEnded, now: float, out: list[Command]) -> None:
    """End the members that a step has finished; the others stay on their engine.

    A member that has only ended a part is queued again with what is left.
    """
    engine = _leave_step(state, event, now)
    _serve(engine, event.duration_s)
    ended = 0
    for report in event.reports:
        ended += report.kind in ("final", "error")
        node = engine.running.get(report.node)
        if node is None:
            continue
        if report.kind == "partial":
            node.streamed = True
            continue
        if report.kind == "part":
            _part_ended(state, engine, node, now, out)
            continue
        leave_engine(state, engine, node)
        engine.node_mean_s = running_mean(engine.node_mean_s, now - node.started_at)
        engine.costs.learn_service(node.served_s, node.spec.size)
        if not node.abandoned:
            end_node(state, node, "done" if report.kind == "final" else "failed", now, out)
    if ended:
        window_s = longest_wait_s(state, engine.predict_s(ended))
        engine.returns.step_ended(ended, now, window_s)
    if engine.running and not engine.stepped:
        _fail_silent(state, engine, now, out)


def _serve(engine: EngineState, duration_s: float) -> None:
    """Give each member its share of the step's time, by items."""
    items = max(1, engine.step_items)
    for node in engine.running.values():
        share_s = duration_s * node.portion / items
        node.served_s += share_s
        node.part_s += share_s


def _part_ended(
    state: SchedulerState, engine: EngineState, node: NodeRun, now: float, out: list[Command]
) -> None:
    items = node.portion
    leave_engine(state, engine, node, keep_flight=not node.abandoned)
    node.taken += items
    node.solo = False  # the part that may have harmed others is through
    engine.costs.learn_part(node.part_s, items)
    node.part_s = 0.0
    if node.abandoned:
        forget_parts(engine, node, out)
        return
    # It ages from here on: what it has already got is no reason to let others wait.
    node.queued_at = now
    engine.queue.add(node)
    state.move(node, "queued", f"{node.left} items are left")


def _fail_silent(
    state: SchedulerState, engine: EngineState, now: float, out: list[Command]
) -> None:
    """Fail the members that an unstepped engine has not reported on."""
    for node in list(engine.running.values()):
        leave_engine(state, engine, node)
        if not node.abandoned:
            end_node(state, node, "failed", now, out)


def step_failed(state: SchedulerState, event: StepFailed, now: float, out: list[Command]) -> None:
    """Retry the members of a step that raised one by one; a lone or streaming member has failed."""
    engine = _leave_step(state, event, now)
    members = list(engine.running.values())
    for node in members:
        gone = node.abandoned or node.state == "ended"
        retried = not gone and not node.streamed and len(members) > 1
        leave_engine(state, engine, node, keep_flight=retried)
        if not retried:
            forget_parts(engine, node, out)
        if retried:
            node.solo = True
            engine.queue.add(node)
            state.move(node, "queued", "its step raised; retried alone")
        elif not gone:
            end_node(state, node, "failed", now, out)


def _leave_step(state: SchedulerState, event: StepEnded | StepFailed, now: float) -> EngineState:
    engine = state.engine(event.engine)
    if engine.step is None or engine.step != event.step:
        raise InvalidTransitionError(
            "a step ended that is not running",
            where=f"engine {event.engine}",
            found=f"step {event.step} while {engine.step} runs",
            hint="an engine worker must report each step once",
        )
    engine.step_mean_s = running_mean(engine.step_mean_s, event.duration_s)
    engine.costs.learn_border(now - engine.step_started, event.duration_s)
    engine.step = engine.hangs_at = None
    engine.threads = 0
    engine.interrupted = False
    engine.lost = False
    state.dirty[engine.name] = None
    return engine


def call_ended(state: SchedulerState, event: CallEnded, now: float, out: list[Command]) -> None:
    """Give a permit back, and append a successful call's nodes to its request."""
    engine = state.engine(event.engine)
    node = engine.running.get(event.node)
    if node is None:
        return
    appended = _append(state, event, node)
    leave_engine(state, engine, node)
    engine.node_mean_s = running_mean(engine.node_mean_s, now - node.started_at)
    state.dirty[engine.name] = None
    if not node.abandoned:
        end_node(state, node, "done" if event.ok else "failed", now, out)
    for child in appended:
        if child.state is None:
            ready(state, child, now)


def _append(state: SchedulerState, event: CallEnded, node: NodeRun) -> list[NodeRun]:
    if not event.append or not event.ok or node.abandoned:
        return []
    run = state.requests[event.node.request]
    if not run.graph:
        raise InvalidTransitionError(
            "only a graph grows; an intercepted program brings its calls itself",
            where=f"{event.node.request}/{event.node.node}",
            found=", ".join(spec.name for spec in event.append),
        )
    return append_nodes(state, run, event.append)

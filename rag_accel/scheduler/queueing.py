"""Queueing of primitives: admission, dependencies, single-flight."""

from __future__ import annotations

from rag_accel.errors import InvalidTransitionError
from rag_accel.scheduler.commands import Command, EndNode, EndRequest
from rag_accel.scheduler.deadlines import set_turn
from rag_accel.scheduler.messages import NodeKey, NodeSpec
from rag_accel.scheduler.runs import NodeRun, RequestRun
from rag_accel.scheduler.state import SchedulerState
from rag_accel.scheduler.wavefront import enter_idle


def append_nodes(
    state: SchedulerState, run: RequestRun, specs: tuple[NodeSpec, ...], leaf: bool = False
) -> list[NodeRun]:
    """Add primitives to a request and return them; none is queued yet.

    Raises:
        InvalidTransitionError: on an engine that has not joined, a name used twice, a dependency
            that does not exist, or a circle. Nothing is added then.
    """
    _check(state, run, specs)
    nodes: list[NodeRun] = []
    for spec in specs:
        node = NodeRun(NodeKey(run.id, spec.name), spec, run.arrived_at, leaf)
        run.nodes[spec.name] = node
        state.engines[spec.engine].wanted += 1
        nodes.append(node)
    run.unfinished += len(nodes)
    for node in nodes:
        for name in dict.fromkeys(node.spec.after):
            before = run.nodes[name]
            if before.state != "ended":
                before.dependents.append(node.key.node)
                node.blockers += 1
    return nodes


def _check(state: SchedulerState, run: RequestRun, specs: tuple[NodeSpec, ...]) -> None:
    new: dict[str, None] = {}
    waits = False
    for spec in specs:
        engine = state.engines.get(spec.engine)
        if engine is None:
            raise _illegal("a primitive names an engine that has not joined", run, spec.engine)
        taken = spec.name in run.nodes or spec.name in new
        if taken or NodeKey(run.id, spec.name) in engine.running:
            raise _illegal("a primitive name was used twice", run, spec.name)
        new[spec.name] = None
        waits = waits or bool(spec.after)
    if not waits:
        return
    for spec in specs:
        for name in spec.after:
            if name not in run.nodes and name not in new:
                raise _illegal("a primitive waits for one that does not exist", run, name)
    if circle := _circle(run, specs):
        raise _illegal("primitives wait for each other", run, ", ".join(circle))


def _illegal(what: str, run: RequestRun, found: str) -> InvalidTransitionError:
    return InvalidTransitionError(what, where=f"request {run.id}", found=found)


def _circle(run: RequestRun, specs: tuple[NodeSpec, ...]) -> list[str]:
    """Return the new primitives that could never start; one look is enough for sorted ones."""
    left = [spec for spec in specs if spec.after]
    settled = {spec.name: None for spec in specs if not spec.after}
    while left:
        rest: list[NodeSpec] = []
        for spec in left:
            if all(name in run.nodes or name in settled for name in spec.after):
                settled[spec.name] = None
            else:
                rest.append(spec)
        if len(rest) == len(left):
            return [spec.name for spec in left]
        left = rest
    return []


def start_request(
    state: SchedulerState,
    run: RequestRun,
    now: float,
    out: list[Command],
    *,
    at_once: bool = False,
) -> None:
    """Admit a new request if there is room; else let it wait or refuse it.

    One that cannot wait, ``at_once``, is admitted beyond the bound instead.
    """
    if state.has_room or (at_once and run.on_full == "wait"):
        state.add_deadline(run)
        run.beyond = not state.has_room
        _admit(state, run, now)
    elif run.on_full == "wait":
        state.add_deadline(run)
        state.pending[run.id] = run
    else:
        for node in run.nodes.values():
            state.unwant(node)
        if run.graph:
            out.append(EndRequest(run.id, "rejected"))
        else:
            out.extend(EndNode(node.key, "rejected") for node in run.nodes.values())


def admit_pending(state: SchedulerState, now: float) -> None:
    """Admit waiting requests, oldest first, while there is room."""
    while state.pending and state.has_room:
        run = state.pending.pop(next(iter(state.pending)))
        _admit(state, run, now)


def admit_at_once(state: SchedulerState, run: RequestRun, now: float) -> None:
    """Admit a waiting request, also where there is no room."""
    del state.pending[run.id]
    run.beyond = not state.has_room
    _admit(state, run, now)


def _admit(state: SchedulerState, run: RequestRun, now: float) -> None:
    run.admitted = True
    state.requests[run.id] = run
    for node in run.nodes.values():
        ready(state, node, now)
    if run.unfinished == 0:
        enter_idle(state, run)


def ready(state: SchedulerState, node: NodeRun, now: float) -> None:
    """Queue a node that waits for nothing; if an equal one already runs, follow that instead."""
    if node.blockers:
        state.move(node, "waiting", f"for {node.blockers}")
        return
    engine = state.engines[node.spec.engine]
    engine.returns.note_arrival(now)
    share = node.spec.share
    node.queued_at = now
    state.dirty[engine.name] = None
    leader = engine.flights.get(share) if share is not None else None
    if leader is not None:
        (engine.queue.get(leader) or engine.running[leader]).followers[node.key] = None
        state.move(node, "following", f"equal to {leader.request}/{leader.node}")
        return
    if share is not None:
        engine.flights[share] = node.key
    set_turn(state, node, now)
    engine.queue.add(node)
    state.move(node, "queued", "ready")

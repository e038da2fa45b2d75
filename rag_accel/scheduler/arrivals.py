"""Arrivals of engines, requests and intercepted calls, taken in or refused."""

from __future__ import annotations

from rag_accel.errors import InvalidTransitionError
from rag_accel.scheduler.commands import Command, EndNode, EndRequest
from rag_accel.scheduler.deadlines import enter_place, learn_rests
from rag_accel.scheduler.early_answers import drop_unasked, may_begin_early
from rag_accel.scheduler.learning import running_mean
from rag_accel.scheduler.messages import (
    BorrowedEngineAdded,
    CallMade,
    EngineLeft,
    EngineName,
    Event,
    LeafArrived,
    LoopHeldUp,
    NodeKey,
    Outcome,
    OwnedEngineAdded,
    ProgramEnded,
    ProgramLeft,
    Reported,
    RequestArrived,
    RequestClosed,
    RequestId,
    RequestOpened,
)
from rag_accel.scheduler.queueing import admit_at_once, append_nodes, ready, start_request
from rag_accel.scheduler.runs import RequestRun
from rag_accel.scheduler.speculation import may_speculate
from rag_accel.scheduler.state import EngineState, SchedulerState
from rag_accel.scheduler.wavefront import enter_idle, forget_program, learn_gap, leave_idle

Arrival = RequestArrived | RequestOpened | LeafArrived


def refusal(state: SchedulerState, event: Arrival, now: float) -> Outcome | None:
    """Return why an arrival is not taken in at all, ``None`` if it is."""
    if state.closed:
        return "closed"
    if isinstance(event, RequestOpened):
        return None
    if event.deadline is not None and event.deadline <= now:
        return "deadline"
    if event.retry_after_s > 0:
        return "rejected"
    if isinstance(event, LeafArrived) and event.on_full == "raise":
        return "rejected" if event.request in state.pending else None
    return None


def refuse(event: Event, outcome: Outcome, out: list[Command]) -> None:
    """Tell the client of an arrival that it was not taken in."""
    if not isinstance(event, LeafArrived | RequestArrived):
        return
    retry = event.retry_after_s if outcome == "rejected" else 0.0
    if isinstance(event, LeafArrived):
        key = NodeKey(event.request, event.node.name)
        out.append(EndNode(key, outcome, retry_after_s=retry))
    else:
        out.append(EndRequest(event.request, outcome, retry_after_s=retry))


def engines_of_new(state: SchedulerState, event: RequestArrived | LeafArrived) -> list[EngineName]:
    """Return the engines that a request needs at once if this event is its admission, else none.

    An opened program is admitted by its first call: nobody waited for an answer before.
    """
    if isinstance(event, RequestArrived):
        return list(dict.fromkeys(spec.engine for spec in event.nodes))
    run = state.find(event.request)
    is_first = run is None or (run.open and not run.nodes and run.last_engine is None)
    return [event.node.engine] if is_first else []


def owned_added(
    state: SchedulerState, event: OwnedEngineAdded, now: float, out: list[Command]
) -> None:
    """Take in an engine that is stepped by us."""
    # One that bounds its work, on a device or server of its own or on several, knows what it takes.
    is_here = event.max_threads > 0 and not event.bounds_its_work
    most = state.options.max_batch if is_here else event.max_batch
    engine = EngineState(
        name=event.engine,
        owned=True,
        max_batch=min(event.max_batch, most),
        max_threads=event.max_threads,
        stepped=event.stepped,
        interruptible=event.interruptible,
        ends_in_time=event.stepped and event.ends_in_time,
        itemwise=event.itemwise,
        bounds_its_work=event.stepped and event.bounds_its_work,
        shares_cores=event.shares_cores,
        base_s=event.base_s,
        per_item_s=event.per_item_s,
    )
    engine.early.idle.until = now
    _add_engine(state, engine, event.max_batch)
    state.owned[engine.name] = engine


def engine_left(state: SchedulerState, event: EngineLeft, now: float, out: list[Command]) -> None:
    """Let an owned engine go once it has nothing to do; one that is gone already may be named."""
    engine = state.owned.get(event.engine)
    if engine is not None:
        engine.leaving = True
        state.dirty[engine.name] = None


def borrowed_added(
    state: SchedulerState, event: BorrowedEngineAdded, now: float, out: list[Command]
) -> None:
    limit = event.max_concurrency
    engine = EngineState(name=event.engine, owned=False, max_concurrency=limit)
    _add_engine(state, engine, limit)


def _add_engine(state: SchedulerState, engine: EngineState, limit: int | None) -> None:
    if engine.name in state.engines:
        raise InvalidTransitionError("an engine joined twice", where=f"engine {engine.name}")
    if limit is not None and limit < 1:
        raise InvalidTransitionError(
            "an engine takes no work", where=f"engine {engine.name}", found=str(limit), valid=">= 1"
        )
    state.engines[engine.name] = engine


def request_arrived(
    state: SchedulerState, event: RequestArrived, now: float, out: list[Command]
) -> None:
    """Take in a whole request; one without any primitive has ended."""
    _require_new(state, event.request)
    run = RequestRun(
        event.request, event.arrived_at, event.deadline, graph=True, on_full=event.on_full
    )
    append_nodes(state, run, event.nodes)
    if run.nodes:
        start_request(state, run, now, out)
    else:
        out.append(EndRequest(run.id, "done"))


def request_opened(
    state: SchedulerState, event: RequestOpened, now: float, out: list[Command]
) -> None:
    """Take in a program whose calls will follow; one that has begun before keeps its place."""
    state.begun.pop(event.request, None)
    _require_new(state, event.request)
    last_engine, idle_since = event.last_call or (None, event.arrived_at)
    run = RequestRun(
        event.request,
        event.arrived_at,
        event.deadline,
        graph=False,
        open=True,
        program=event.program,
        last_engine=last_engine,
        idle_since=idle_since,
    )
    start_request(state, run, now, out, at_once=event.was_reported)


def leaf_arrived(state: SchedulerState, event: LeafArrived, now: float, out: list[Command]) -> None:
    """Take in one intercepted call; its request is opened on the spot if it was not before."""
    if event.node.after:
        raise InvalidTransitionError(
            "an intercepted call cannot wait for others",
            where=f"{event.request}/{event.node.name}",
            found=", ".join(event.node.after),
        )
    is_early = event.node.early or event.node.stakes is not None
    if is_early and not (may_begin_early(state, event) or may_speculate(state, event)):
        out.append(EndNode(NodeKey(event.request, event.node.name), "cancelled"))
        return
    run = state.find(event.request)
    if run is None:
        run = RequestRun(
            event.request, event.arrived_at, event.deadline, graph=False, on_full=event.on_full
        )
        (node,) = append_nodes(state, run, (event.node,), leaf=True)
        start_request(state, run, now, out, at_once=event.at_once)
    else:
        if event.at_once and not run.admitted:
            admit_at_once(state, run, now)
        (node,) = append_nodes(state, run, (event.node,), leaf=True)
        if event.node.early:
            state.unasked[node.key] = None
        elif not is_early:
            node.place = enter_place(run, event.node.engine, event.node.size, now)
        if run.unfinished == 1:
            leave_idle(state, run)
            if not is_early:
                learn_gap(state, run, event.node.engine, now)
        if run.admitted:
            ready(state, node, now)
    engine = state.engines[event.node.engine]
    if event.at_once and not engine.owned and node.state == "queued":
        engine.at_once[node.key] = None


def loop_held_up(state: SchedulerState, event: LoopHeldUp, now: float, out: list[Command]) -> None:
    """Let a leaf in that no bound may keep out any more; nothing if it has been let in."""
    run = state.find(event.node.request)
    node = run.nodes.get(event.node.node) if run is not None else None
    if run is None or node is None:
        return
    if not run.admitted:
        admit_at_once(state, run, now)
    engine = state.engines[node.spec.engine]
    if not engine.owned and node.state == "queued":
        engine.at_once[node.key] = None
        state.dirty[engine.name] = None


def reported(state: SchedulerState, event: Reported, now: float, out: list[Command]) -> None:
    """Learn from reported facts, and count the programs that are not opened."""
    for fact in event.facts:
        if isinstance(fact, CallMade):
            _learn_call(state, fact)
        elif isinstance(fact, ProgramEnded):
            state.begun.pop(fact.request, None)
        elif not state.closed:
            state.begun[fact.request] = None


def _learn_call(state: SchedulerState, event: CallMade) -> None:
    """Learn from a call that is over: what it took, and where its program has been meanwhile."""
    engine = state.engine(event.engine)
    engine.node_mean_s = running_mean(engine.node_mean_s, event.ended_at - event.began_at)
    run = state.requests.get(event.request)
    if run is None or not run.open:
        return
    if event.ended_at < run.idle_since:  # it ran at the same time as another
        return
    if run.unfinished:
        run.last_engine, run.idle_since = engine.name, event.ended_at
    else:
        leave_idle(state, run)
        run.last_engine, run.idle_since = engine.name, event.ended_at
        enter_idle(state, run)


def program_left(state: SchedulerState, event: ProgramLeft, now: float, out: list[Command]) -> None:
    """Forget the learned behaviour of a program that is gone."""
    forget_program(state, event.program)


def request_closed(
    state: SchedulerState, event: RequestClosed, now: float, out: list[Command]
) -> None:
    """Let an opened program go; it ends with its last running call."""
    run = state.find(event.request)
    if run is None:
        return
    run.open = False
    drop_unasked(state, now, out)
    learn_rests(state, run, event.closed_at)
    if run.unfinished == 0:
        leave_idle(state, run)
        state.forget(run.id)


def _require_new(state: SchedulerState, request: RequestId) -> None:
    if state.find(request) is not None:
        raise InvalidTransitionError("a request arrived twice", where=f"request {request}")

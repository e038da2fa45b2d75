"""Say whom an error of our own concerns, and what sets things right again afterwards.

The core may have broken off anywhere: an event may be half applied, and commands it had decided on
are lost. So driver and core are compared, and what only one of them knows is made up for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from rag_accel.scheduler.commands import (
    CancelWork,
    Command,
    EndNode,
    EndRequest,
    StartCall,
    StartStep,
)
from rag_accel.scheduler.driver.worker import EngineWorker
from rag_accel.scheduler.messages import (
    CallEnded,
    EngineName,
    Event,
    LeafArrived,
    NodeCancelled,
    NodeKey,
    RequestArrived,
    RequestCancelled,
    RequestClosed,
    RequestId,
    StepEnded,
    StepFailed,
)
from rag_accel.scheduler.runs import NodeRun, RequestRun
from rag_accel.scheduler.state import EngineState, SchedulerState


def concerned(what: Event | Command, members: Iterable[NodeKey] = ()) -> list[NodeKey]:
    """Return the primitives whose fate is unknown after ``what`` could not be carried out.

    A name that is empty stands for the whole request. ``members`` are those of a failed step.
    """
    match what:
        case LeafArrived():
            return [NodeKey(what.request, what.node.name)]
        case RequestArrived() | RequestCancelled() | EndRequest():
            return [NodeKey(what.request, "")]
        case CallEnded() | NodeCancelled() | StartCall() | EndNode():
            return [what.node]
        case StartStep():
            return list(what.admitted)
        case CancelWork():
            return list(what.nodes)
        case StepEnded():
            return list(dict.fromkeys((*members, *(report.node for report in what.reports))))
        case StepFailed():
            return list(members)
        case _:
            return []


def repairs(what: Event | Command, state: SchedulerState) -> list[Event]:
    """Return the events that still have to reach the core, once whom it concerns is cancelled."""
    match what:
        case RequestClosed():
            return [what]
        case CallEnded():
            return [CallEnded(what.node, what.engine, ok=False)]
        case StartCall():
            return [CallEnded(what.node, what.engine, ok=False)]
        case StepEnded() | StepFailed():
            engine = state.engines.get(what.engine)
            if engine is None or engine.step != what.step:
                return []
            return [StepEnded(what.engine, what.step, (), what.duration_s)]
        case StartStep():
            return [StepEnded(what.engine, what.step, (), 0.0)]
        case _:
            return []


def unstarted(state: SchedulerState, workers: Mapping[EngineName, EngineWorker]) -> list[NodeKey]:
    """Return the primitives that the core believes to be in a step that will never take them."""
    return [
        key
        for engine in state.owned.values()
        if (worker := workers.get(engine.name)) is not None
        and (engine.step is None or engine.step == worker.step)
        for key in engine.running
        if key not in worker.given
    ]


def stuck(state: SchedulerState) -> list[NodeKey]:
    """Return the primitives that nothing will ever move again."""
    return [
        node.key
        for run in (*state.requests.values(), *state.pending.values())
        for node in run.nodes.values()
        if not _may_move(state, run, node)
    ]


def overdue(state: SchedulerState) -> list[RequestId]:
    """Return the requests that should have ended with their last primitive."""
    return [
        run.id
        for run in (*state.requests.values(), *state.pending.values())
        if not run.open and all(node.state == "ended" for node in run.nodes.values())
    ]


def _may_move(state: SchedulerState, run: RequestRun, node: NodeRun) -> bool:
    engine = state.engines[node.spec.engine]
    match node.state:
        case "queued":
            return node.key in engine.queue
        case "running":
            return node.key in engine.running
        case "following":
            leader = engine.flights.get(node.spec.share)
            holder = (engine.queue.get(leader) or engine.running.get(leader)) if leader else None
            return holder is not None and node.key in holder.followers
        case "waiting":
            return any(run.nodes[name].state != "ended" for name in node.spec.after)
        case None:
            return not run.admitted
        case _:
            return True


def lost_commands(
    state: SchedulerState,
    workers: Mapping[EngineName, EngineWorker],
    granted: Collection[NodeKey],
) -> list[Command]:
    """Return what the core had decided and nobody was told."""
    commands: list[Command] = []
    for engine in state.engines.values():
        if not engine.owned:
            calls = (key for key, node in engine.running.items() if not node.abandoned)
            commands += [StartCall(key, engine.name) for key in calls if key not in granted]
        elif (worker := workers.get(engine.name)) is not None:
            commands += _lost_steps(engine, worker)
    return commands


def lost_permits(state: SchedulerState, granted: Collection[NodeKey]) -> list[Event]:
    """Return the ends of calls that nobody will report, because they were never let in."""
    return [
        CallEnded(key, engine.name, ok=False)
        for engine in state.engines.values()
        if not engine.owned
        for key, node in engine.running.items()
        if node.abandoned and key not in granted
    ]


def _lost_steps(engine: EngineState, worker: EngineWorker) -> list[Command]:
    commands: list[Command] = []
    gone = tuple(key for key in worker.given if key not in engine.running)
    if gone and engine.stepped:
        commands.append(CancelWork(engine.name, gone))
    if engine.step is not None and engine.step != worker.step:
        new = tuple(key for key in engine.running if key not in worker.given)
        parts = (node.part for key, node in engine.running.items() if key in new)
        cut = tuple(part for part in parts if part is not None)
        commands.append(StartStep(engine.name, engine.step, new, engine.threads, parts=cut))
    return commands

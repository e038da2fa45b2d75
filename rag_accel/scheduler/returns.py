"""Returns of steps and calls: what of them has ended, failed, or goes on."""

from __future__ import annotations

from rag_accel.errors import InvalidTransitionError
from rag_accel.scheduler.commands import Command
from rag_accel.scheduler.completions import end_node, forget_parts, leave_engine
from rag_accel.scheduler.deadlines import learn_time
from rag_accel.scheduler.early import early_step_over
from rag_accel.scheduler.learning import running_mean
from rag_accel.scheduler.messages import CallEnded, StepEnded, StepFailed
from rag_accel.scheduler.queueing import append_nodes, ready
from rag_accel.scheduler.recovery import end_failed
from rag_accel.scheduler.runs import NodeRun
from rag_accel.scheduler.state import EngineState, SchedulerState
from rag_accel.scheduler.wavefront import longest_wait_s


def step_ended(state: SchedulerState, event: StepEnded, now: float, out: list[Command]) -> None:
    """End the members that a step has finished; the others stay on their engine.

    A member that has only ended a part is queued again with what is left.
    """
    engine = _leave_step(state, event, now)
    if engine.early.is_stepping:
        early_step_over(engine, event, now, out)
        return
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
        if report.kind == "taken":
            end_node(state, node, "done", now, out)
            continue
        engine.node_mean_s = running_mean(engine.node_mean_s, now - node.started_at)
        engine.costs.learn_service(node.served_s, node.spec.size)
        if report.kind == "final":
            learn_time(engine, node, now)
        if node.abandoned:
            continue
        if report.kind == "final":
            engine.retries.earn()
            end_node(state, node, "done", now, out)
        else:
            end_failed(state, node, report.retry_after_s, now, out)
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
    if engine.early.is_stepping:
        early_step_over(engine, event, now, out)
        return
    waits_s = {report.node: report.retry_after_s for report in event.errors}
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
            end_failed(state, node, waits_s.get(node.key), now, out)


def _leave_step(state: SchedulerState, event: StepEnded | StepFailed, now: float) -> EngineState:
    engine = state.engine(event.engine)
    if engine.step is None or engine.step != event.step:
        raise InvalidTransitionError(
            "a step ended that is not running",
            where=f"engine {event.engine}",
            found=f"step {event.step} while {engine.step} runs",
            hint="an engine worker must report each step once",
        )
    if not engine.early.is_stepping:
        engine.step_mean_s = running_mean(engine.step_mean_s, event.duration_s)
        engine.costs.learn_border(now - engine.step_started, event.duration_s)
        engine.early.idle.work(engine.step_started, now)
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
    if event.ok:
        learn_time(engine, node, now)
    state.dirty[engine.name] = None
    if event.ok and not node.abandoned:
        end_node(state, node, "done", now, out)
    elif not node.abandoned:
        end_failed(state, node, event.retry_after_s, now, out)
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

"""Turn what the driver sees into metrics and trace events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rag_accel.scheduler.messages import (
    CallEnded,
    Command,
    EndNode,
    EndRequest,
    Event,
    NodeKey,
    StartCall,
    StartStep,
    StepEnded,
    StepFailed,
)
from rag_accel.scheduler.state import SchedulerState
from rag_accel.telemetry import events as trace
from rag_accel.telemetry.metrics import Metrics
from rag_accel.telemetry.tracer import Tracer


class SchedulerObserver:
    """Record waits, batches, steps and outcomes. Used on the driver's thread only."""

    def __init__(self, metrics: Metrics, tracer: Tracer) -> None:
        self._metrics = metrics
        self._tracer = tracer
        self._calls: dict[NodeKey, float] = {}
        self._steps: dict[str, StartStep] = {}
        self._sizes: dict[str, int] = {}

    def observe(
        self, event: Event, commands: list[Command], now: float, state: SchedulerState
    ) -> None:
        """Record one event and what it led to."""
        if isinstance(event, StepEnded | StepFailed):
            self._step_over(event, now)
        elif isinstance(event, CallEnded):
            self._call_over(event, now)
        for command in commands:
            record = _RECORD.get(type(command))
            if record is not None:
                record(self, command, now, state)

    def _step_started(self, command: StartStep, now: float, state: SchedulerState) -> None:
        engine = state.engines[command.engine]
        cells = self._metrics.engine(command.engine)
        for key in command.admitted:
            self._dispatched(key, command.engine, now - engine.running[key].queued_at, now)
        self._steps[command.engine] = command
        items = sum(node.spec.size for node in engine.running.values())
        self._sizes[command.engine] = items
        cells.batch_size.observe(items)
        if trace.StepStarted in self._tracer.wanted:
            members = tuple(engine.running)
            self._tracer.emit(
                trace.StepStarted(now, command.engine, command.step, members, command.threads)
            )

    def _call_started(self, command: StartCall, now: float, state: SchedulerState) -> None:
        node = state.engines[command.engine].running[command.node]
        self._calls[command.node] = now
        self._dispatched(command.node, command.engine, now - node.queued_at, now)

    def _dispatched(self, key: NodeKey, engine: str, waited_s: float, now: float) -> None:
        self._metrics.engine(engine).queue_wait_s.observe(waited_s)
        if trace.NodeDispatched in self._tracer.wanted:
            self._tracer.emit(trace.NodeDispatched(now, key.request, key.node, engine, waited_s))

    def _step_over(self, event: StepEnded | StepFailed, now: float) -> None:
        cells = self._metrics.engine(event.engine)
        cells.steps.add()
        cells.items.add(self._sizes.pop(event.engine, 0))
        cells.step_s.observe(event.duration_s)
        failed = isinstance(event, StepFailed)
        if failed:
            cells.failures.add()
        started = self._steps.pop(event.engine, None)
        if started is not None and trace.StepEnded in self._tracer.wanted:
            self._tracer.emit(
                trace.StepEnded(
                    now,
                    event.engine,
                    event.step,
                    started.admitted,
                    started.threads,
                    event.duration_s,
                    not failed,
                )
            )

    def _call_over(self, event: CallEnded, now: float) -> None:
        started = self._calls.pop(event.node, None)
        if started is None:
            return
        cells = self._metrics.engine(event.engine)
        cells.record_step(1, now - started)
        if not event.ok:
            cells.failures.add()

    def _node_ended(self, command: EndNode, now: float, state: SchedulerState) -> None:
        if trace.NodeFinished in self._tracer.wanted:
            key = command.node
            self._tracer.emit(trace.NodeFinished(now, key.request, key.node, "", command.outcome))

    def _request_ended(self, command: EndRequest, now: float, state: SchedulerState) -> None:
        if trace.RequestEnded in self._tracer.wanted:
            node = command.node.node if command.node else None
            self._tracer.emit(trace.RequestEnded(now, command.request, command.outcome, node))


_RECORD: dict[type, Callable[[SchedulerObserver, Any, float, SchedulerState], None]] = {
    StartStep: SchedulerObserver._step_started,  # pyright: ignore[reportPrivateUsage]
    StartCall: SchedulerObserver._call_started,  # pyright: ignore[reportPrivateUsage]
    EndNode: SchedulerObserver._node_ended,  # pyright: ignore[reportPrivateUsage]
    EndRequest: SchedulerObserver._request_ended,  # pyright: ignore[reportPrivateUsage]
}

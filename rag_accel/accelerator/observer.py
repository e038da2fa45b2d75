"""Metrics and trace events of the driver's events and commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any, TypeVar

from rag_accel.scheduler.commands import (
    Command,
    DropEngine,
    EndEarly,
    EndNode,
    EndRequest,
    RetryNode,
    StartCall,
    StartFallback,
    StartStep,
)
from rag_accel.scheduler.messages import (
    BorrowedEngineAdded,
    CallEnded,
    CallMade,
    EngineName,
    Event,
    Fact,
    LeafArrived,
    NodeKey,
    OwnedEngineAdded,
    ProgramBegan,
    ProgramEnded,
    Reported,
    RequestArrived,
    RequestClosed,
    RequestId,
    RequestOpened,
    StepEnded,
    StepFailed,
)
from rag_accel.scheduler.runs import NodeRun
from rag_accel.scheduler.state import SchedulerState
from rag_accel.telemetry import events as trace
from rag_accel.telemetry.metrics import EngineMetrics, Metrics
from rag_accel.telemetry.tracer import Tracer

F = TypeVar("F", bound=Fact)


class SchedulerObserver:
    """A recorder of waits, batches, steps and outcomes. Used by one thread at a time."""

    def __init__(self, metrics: Metrics, tracer: Tracer) -> None:
        self._metrics = metrics
        self._tracer = tracer
        self._cells: dict[str, EngineMetrics] = {}
        self._calls: dict[NodeKey, float] = {}
        self._steps: dict[str, StartStep] = {}
        # The others are kept only while somebody wants the events that need them.
        #: of each request, its nodes that run: where and since when
        self._running: dict[RequestId, dict[str, tuple[str, float]]] = {}
        #: programs that have begun and are neither opened nor over
        self._programs: set[RequestId] = set()
        #: of each request, the first nodes that a condition has added, and that condition
        self._grown: dict[RequestId, dict[str, str]] = {}
        #: when leaves came that may share another's run
        self._sharing: dict[NodeKey, float] = {}
        #: what ended last, and where it ran: the leader of the followers that end next
        self._leader: tuple[NodeKey, str] | None = None
        #: the step that each lost engine did not come back from
        self._lost: dict[str, int] = {}

    def observe(
        self, event: Event, commands: list[Command], now: float, state: SchedulerState
    ) -> None:
        note = _NOTE.get(type(event))
        if note is not None:
            note(self, event, now, state)
        for command in commands:
            record = _RECORD.get(type(command))
            if record is not None:
                record(self, command, now, state)

    def _engine_joined(
        self, event: OwnedEngineAdded | BorrowedEngineAdded, now: float, state: SchedulerState
    ) -> None:
        engine = state.engines[event.engine]
        capacity = engine.max_batch if engine.owned else engine.max_concurrency
        self._tracer.keep(
            trace.EngineJoined(now, engine.name, engine.owned, engine.stepped, capacity)
        )

    def _graph_arrived(self, event: RequestArrived, now: float, state: SchedulerState) -> None:
        if trace.RequestStarted in self._tracer.wanted:
            self._tracer.emit(trace.RequestStarted(event.arrived_at, event.request, "graph"))

    def _program_opened(self, event: RequestOpened, now: float, state: SchedulerState) -> None:
        if event.was_reported:
            self._programs.discard(event.request)
        elif trace.RequestStarted in self._tracer.wanted:
            self._tracer.emit(trace.RequestStarted(event.arrived_at, event.request, "program"))

    def _program_closed(self, event: RequestClosed, now: float, state: SchedulerState) -> None:
        if trace.RequestEnded in self._tracer.wanted:
            self._tracer.emit(trace.RequestEnded(event.closed_at, event.request, "done"))

    def _reported(self, event: Reported, now: float, state: SchedulerState) -> None:
        calls: dict[str, list[CallMade]] = {}
        for fact in event.facts:
            if isinstance(fact, CallMade):
                calls.setdefault(fact.engine, []).append(fact)
                is_alone = fact.request not in self._programs and state.find(fact.request) is None
                self._trace(_lone_call_events if is_alone else _call_events, fact)
            elif isinstance(fact, ProgramBegan):
                self._programs.add(fact.request)
                self._trace(_begin_events, fact)
            else:
                self._programs.discard(fact.request)
                self._trace(_end_events, fact)
        for engine, made in calls.items():
            cells = self._cells.get(engine) or self._find_cells(engine)
            durations = [call.ended_at - call.began_at for call in made]
            cells.record_calls(durations, sum(not call.ok for call in made))

    def _trace(self, make: Callable[[F], Iterable[trace.TraceEvent]], fact: F) -> None:
        if self._tracer.wanted:
            self._tracer.emit_later(make, fact)

    def _leaf_arrived(self, event: LeafArrived, now: float, state: SchedulerState) -> None:
        wanted = self._tracer.wanted
        if trace.RequestStarted in wanted:
            run = state.find(event.request)
            if run is None or not (run.open or run.graph):
                self._tracer.emit(trace.RequestStarted(event.arrived_at, event.request, "leaf"))
        if event.node.share is not None and trace.SingleFlightJoined in wanted:
            self._sharing[NodeKey(event.request, event.node.name)] = now

    def _step_over(self, event: StepEnded | StepFailed, now: float, state: SchedulerState) -> None:
        self._lost.pop(event.engine, None)
        if (started := self._steps.get(event.engine)) is not None and started.is_early:
            del self._steps[event.engine]
            self._metrics.counter("engines", event.engine, "early_steps").add()
            return
        cells = self._cells.get(event.engine) or self._find_cells(event.engine)
        cells.steps.add()
        cells.step_s.observe(event.duration_s)
        failed = isinstance(event, StepFailed)
        if failed:
            cells.failures.add()
        elif isinstance(event, StepEnded):
            self._count_tokens(event, now)
            self._metrics.record_counts(event.engine, event.counts)
        started = self._steps.pop(event.engine, None)
        if isinstance(event, StepEnded) and trace.FirstOutput in self._tracer.wanted:
            self._first_outputs(event, now)
        if started is not None and trace.StepEnded in self._tracer.wanted:
            ran = event.step, started.admitted, started.threads, event.duration_s
            self._tracer.emit(trace.StepEnded(now, event.engine, *ran, not failed))

    def _count_tokens(self, event: StepEnded, now: float) -> None:
        for report in event.reports:
            if report.used is None:
                continue
            prompt, completed = report.used.prompt, report.used.completion_tokens
            self._metrics.record_tokens(
                event.engine,
                prompt_tokens_computed=prompt.computed,
                prompt_tokens_from_prefix=prompt.from_prefix,
                prompt_tokens_from_chunks=prompt.from_chunks,
                prompt_tokens_recomputed=prompt.recomputed,
                prompt_tokens_approximate=prompt.approximate,
                completion_tokens=completed,
            )
            if trace.TokensUsed in self._tracer.wanted:
                counts = {**asdict(prompt), "completion_tokens": completed}
                self._tracer.emit(trace.TokensUsed(now, *report.node, event.engine, **counts))

    def _first_outputs(self, event: StepEnded, now: float) -> None:
        for report in event.reports:
            node = report.node
            # Nobody waits any more for what a node streams that was cancelled meanwhile.
            if report.kind == "partial" and node.node in self._running.get(node.request, {}):
                self._tracer.emit(trace.FirstOutput(now, *node, event.engine))

    def _call_over(self, event: CallEnded, now: float, state: SchedulerState) -> None:
        if event.append and event.node.request in state.requests:
            new = {spec.name for spec in event.append}
            first = [spec.name for spec in event.append if new.isdisjoint(spec.after)]
            grown = self._grown.setdefault(event.node.request, {})
            grown.update(dict.fromkeys(first, event.node.node))
        started = self._calls.pop(event.node, None)
        if started is None:
            return
        self._metrics.engine(event.engine).record_step(1, now - started, event.ok)

    def _step_started(self, command: StartStep, now: float, state: SchedulerState) -> None:
        if command.is_early:
            self._steps[command.engine] = command
            return
        engine = state.engines[command.engine]
        cells = self._cells.get(command.engine) or self._find_cells(command.engine)
        joined = 0
        for key in command.admitted:
            node = engine.running[key]
            joined += 0 if node.solo else node.portion  # what is retried has been counted
            if not node.taken:  # the further parts of a node were dispatched with its first
                self._dispatched(node, cells, now)
        self._steps[command.engine] = command
        if joined:  # a step may also go on with what an earlier one has left
            cells.items.add(joined)
            cells.batch_size.observe(joined)
        if trace.StepStarted in self._tracer.wanted:
            members = tuple(engine.running)
            self._tracer.emit(
                trace.StepStarted(now, command.engine, command.step, members, command.threads)
            )

    def _call_started(self, command: StartCall, now: float, state: SchedulerState) -> None:
        node = state.engines[command.engine].running[command.node]
        self._calls[command.node] = now
        self._dispatched(node, self._find_cells(command.engine), now)

    def _find_cells(self, engine: str) -> EngineMetrics:
        cells = self._cells[engine] = self._metrics.engine(engine)
        return cells

    def _dispatched(self, node: NodeRun, cells: EngineMetrics, now: float) -> None:
        spec = node.spec
        waited_s = now - node.queued_at
        cells.queue_wait_s.observe(waited_s)
        wanted = self._tracer.wanted
        request, name = node.key
        if trace.NodeFinished in wanted or trace.FirstOutput in wanted:
            running = self._running.get(request)
            if running is None:
                running = self._running[request] = {}
            running[name] = (spec.engine, now)
        if trace.NodeDispatched in wanted:
            after = spec.after
            if self._grown and (cause := self._grown.get(request, {}).get(name)) is not None:
                after = tuple(dict.fromkeys((*after, cause)))
            told = spec.engine, waited_s, spec.kind, after, spec.depth, spec.size
            self._tracer.emit(trace.NodeDispatched(now, request, name, *told))

    def _engine_dropped(self, command: DropEngine, now: float, state: SchedulerState) -> None:
        """Forget an engine that has left: there may be one for every request."""
        self._steps.pop(command.engine, None)
        self._lost.pop(command.engine, None)
        self._cells.pop(command.engine, None)
        self._metrics.retire_engine(command.engine)
        self._tracer.let_go(
            lambda kept: isinstance(kept, trace.EngineJoined) and kept.engine == command.engine
        )

    def _node_ended(self, command: EndNode, now: float, state: SchedulerState) -> None:
        key = command.node
        if command.outcome == "lost" and trace.EngineLost in self._tracer.wanted:
            self._engines_lost(now, state)
        arrived = self._sharing.pop(key, now) if self._sharing else now
        if command.leader is not None:
            self._joined(command, command.leader, now - arrived, now)
            return
        running = self._running.get(key.request)
        engine, since = running.pop(key.node, ("", now)) if running else ("", now)
        if running is not None and not running:
            del self._running[key.request]
        self._leader = (key, engine)
        if trace.NodeFinished in self._tracer.wanted:
            self._tracer.emit(trace.NodeFinished(now, *key, engine, command.outcome, now - since))

    def _early_ended(self, command: EndEarly, now: float, state: SchedulerState) -> None:
        outcome = "early_done" if command.outcome == "done" else "early_dropped"
        if command.outcome == "failed":
            outcome = "early_failed"
        engine = command.engine
        if engine not in state.engines:  # its own counters are gone, and are not to come back
            engine = EngineName(f"{engine.partition('#')[0]}#left")
        self._metrics.counter("engines", engine, outcome).add()

    def _node_retried(self, command: RetryNode, now: float, state: SchedulerState) -> None:
        if trace.NodeRetried in self._tracer.wanted:
            engine = self._engine_of(command.node, state)
            told = engine, command.attempt, command.delay_s
            self._tracer.emit(trace.NodeRetried(now, *command.node, *told))

    def _fallback_started(self, command: StartFallback, now: float, state: SchedulerState) -> None:
        request, fallback = command.node.request, command.fallback
        running = self._running.get(request, {})
        for name in (*fallback.others, fallback.last):
            running.pop(name, None)
        if trace.FallbackStarted in self._tracer.wanted:
            engine = self._engine_of(command.node, state)
            by = tuple(spec.name for spec in fallback.specs)
            self._tracer.emit(trace.FallbackStarted(now, *command.node, engine, by))

    def _engine_of(self, key: NodeKey, state: SchedulerState) -> str:
        node = state.find_node(key)  # its request may be over by the end of the event
        return node.spec.engine if node is not None else ""

    def _engines_lost(self, now: float, state: SchedulerState) -> None:
        for engine in state.owned.values():
            if engine.lost and engine.step is not None and engine.name not in self._lost:
                self._lost[engine.name] = engine.step
                self._tracer.emit(trace.EngineLost(now, engine.name, engine.step))

    def _joined(self, command: EndNode, leader: NodeKey, waited_s: float, now: float) -> None:
        """Record a node that got the result of an equal node that ended just before it."""
        ended, engine = self._leader or (leader, "")
        engine = engine if ended == leader else ""
        if trace.SingleFlightJoined in self._tracer.wanted:
            self._tracer.emit(
                trace.SingleFlightJoined(now, *command.node, engine, leader, waited_s)
            )
        if trace.NodeFinished in self._tracer.wanted:
            self._tracer.emit(trace.NodeFinished(now, *command.node, engine, command.outcome))

    def _request_ended(self, command: EndRequest, now: float, state: SchedulerState) -> None:
        self._grown.pop(command.request, None)
        # What still runs of a graph that failed has no end of its own.
        for name, (engine, since) in self._running.pop(command.request, {}).items():
            if trace.NodeFinished in self._tracer.wanted:
                ended = trace.NodeFinished(
                    now, command.request, name, engine, "cancelled", now - since
                )
                self._tracer.emit(ended)
        if trace.RequestEnded in self._tracer.wanted:
            node = command.node.node if command.node else None
            self._tracer.emit(trace.RequestEnded(now, command.request, command.outcome, node))


def _begin_events(program: ProgramBegan) -> Iterator[trace.TraceEvent]:
    """Yield the start of a program that is not opened."""
    yield trace.RequestStarted(program.arrived_at, program.request, "program")


def _end_events(program: ProgramEnded) -> Iterator[trace.TraceEvent]:
    """Yield the end of a program that was never opened."""
    yield trace.RequestEnded(program.closed_at, program.request, "done")


def _call_events(call: CallMade) -> Iterator[trace.TraceEvent]:
    node = (call.request, call.name, call.engine)
    yield trace.NodeDispatched(call.began_at, *node, 0.0, call.kind)
    outcome = "done" if call.ok else "failed"
    yield trace.NodeFinished(call.ended_at, *node, outcome, call.ended_at - call.began_at)


def _lone_call_events(call: CallMade) -> Iterator[trace.TraceEvent]:
    """Yield the events of a call that is a request of its own."""
    yield trace.RequestStarted(call.arrived_at, call.request, "leaf")
    yield from _call_events(call)


_NOTE: dict[type, Callable[[SchedulerObserver, Any, float, SchedulerState], None]] = {
    OwnedEngineAdded: SchedulerObserver._engine_joined,  # pyright: ignore[reportPrivateUsage]
    BorrowedEngineAdded: SchedulerObserver._engine_joined,  # pyright: ignore[reportPrivateUsage]
    RequestArrived: SchedulerObserver._graph_arrived,  # pyright: ignore[reportPrivateUsage]
    RequestOpened: SchedulerObserver._program_opened,  # pyright: ignore[reportPrivateUsage]
    RequestClosed: SchedulerObserver._program_closed,  # pyright: ignore[reportPrivateUsage]
    LeafArrived: SchedulerObserver._leaf_arrived,  # pyright: ignore[reportPrivateUsage]
    StepEnded: SchedulerObserver._step_over,  # pyright: ignore[reportPrivateUsage]
    StepFailed: SchedulerObserver._step_over,  # pyright: ignore[reportPrivateUsage]
    Reported: SchedulerObserver._reported,  # pyright: ignore[reportPrivateUsage]
    CallEnded: SchedulerObserver._call_over,  # pyright: ignore[reportPrivateUsage]
}

_RECORD: dict[type, Callable[[SchedulerObserver, Any, float, SchedulerState], None]] = {
    StartStep: SchedulerObserver._step_started,  # pyright: ignore[reportPrivateUsage]
    StartCall: SchedulerObserver._call_started,  # pyright: ignore[reportPrivateUsage]
    DropEngine: SchedulerObserver._engine_dropped,  # pyright: ignore[reportPrivateUsage]
    RetryNode: SchedulerObserver._node_retried,  # pyright: ignore[reportPrivateUsage]
    StartFallback: SchedulerObserver._fallback_started,  # pyright: ignore[reportPrivateUsage]
    EndEarly: SchedulerObserver._early_ended,  # pyright: ignore[reportPrivateUsage]
    EndNode: SchedulerObserver._node_ended,  # pyright: ignore[reportPrivateUsage]
    EndRequest: SchedulerObserver._request_ended,  # pyright: ignore[reportPrivateUsage]
}

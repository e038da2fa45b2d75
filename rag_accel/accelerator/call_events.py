"""Trace events of calls and programs that needed no decision of the scheduler."""

from __future__ import annotations

from collections.abc import Iterator

from rag_accel.scheduler.messages import CallMade, ProgramBegan, ProgramEnded
from rag_accel.telemetry import events as trace


def begin_events(program: ProgramBegan) -> Iterator[trace.TraceEvent]:
    """Yield the start of a program that is not opened."""
    yield trace.RequestStarted(program.arrived_at, program.request, "program")


def end_events(program: ProgramEnded) -> Iterator[trace.TraceEvent]:
    """Yield the end of a program that was never opened."""
    yield trace.RequestEnded(program.closed_at, program.request, "done")


def call_events(call: CallMade) -> Iterator[trace.TraceEvent]:
    """Yield the events of a call of a request."""
    node = (call.request, call.name, call.engine)
    yield trace.NodeDispatched(call.began_at, *node, 0.0, call.kind)
    outcome = "done" if call.ok else "failed"
    yield trace.NodeFinished(call.ended_at, *node, outcome, call.ended_at - call.began_at)


def lone_call_events(call: CallMade) -> Iterator[trace.TraceEvent]:
    """Yield the events of a call that is a request of its own."""
    yield trace.RequestStarted(call.arrived_at, call.request, "leaf")
    yield from call_events(call)

"""Traces of events (``tracer``, ``events``), and counts and durations (``metrics``)."""

from rag_accel.telemetry.events import EVENT_TYPES, TraceEvent, to_record
from rag_accel.telemetry.metrics import (
    Counter,
    EngineMetrics,
    Histogram,
    HistogramSnapshot,
    Metrics,
)
from rag_accel.telemetry.sinks import JsonLinesSink, MemorySink, Sink
from rag_accel.telemetry.tracer import RingBuffer, Tracer

__all__ = [
    "EVENT_TYPES",
    "Counter",
    "EngineMetrics",
    "Histogram",
    "HistogramSnapshot",
    "JsonLinesSink",
    "MemorySink",
    "Metrics",
    "RingBuffer",
    "Sink",
    "TraceEvent",
    "Tracer",
    "to_record",
]

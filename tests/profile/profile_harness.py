"""Make recordings: by hand, and by runs of an accelerator whose clock only a test moves."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st

from rag_accel import END, START, Accelerator, RAGraph
from rag_accel.clock import MonotonicClock
from rag_accel.engine_api import PrimitiveKind
from rag_accel.profile.recording import (
    RecordedEngine,
    RecordedPrimitive,
    RecordedRequest,
    Recording,
)
from rag_accel.telemetry import TraceEvent
from rag_accel.telemetry.events import NodeFinished
from rag_accel.testing import FAKE_PROFILE, FakeEngine, ManualClock

PATIENCE_S = 20.0

DECODER = replace(FAKE_PROFILE, kinds=frozenset({PrimitiveKind.DECODING}))
"""An engine that reads its prompt while it decodes; others prefill in steps of their own."""


def primitive(name: str, start: float, end: float, *after: str, **parts: Any) -> RecordedPrimitive:
    """Return a primitive that was ready when it started, unless ``ready_s`` is given."""
    told = {"kind": "FUNCTION", "engine": "e", "ready_s": start, **parts}
    return RecordedPrimitive(name, after=after, started_s=start, ended_s=end, **told)


def request(
    *primitives: RecordedPrimitive, arrived: float = 0, ended: float | None = None, **parts: Any
) -> RecordedRequest:
    """Return a request that ended with its last primitive, unless it is said when."""
    last = max((one.ended_s for one in primitives), default=arrived)
    told = {"id": 1, "origin": "graph", "outcome": "done", **parts}
    return RecordedRequest(
        arrived_s=arrived, ended_s=last if ended is None else ended, primitives=primitives, **told
    )


def recording(*requests: RecordedRequest, **capacities: int | None) -> Recording:
    """Return a recording with owned engines of these capacities; all others are borrowed."""
    engines = {name: RecordedEngine(name, True, False, size) for name, size in capacities.items()}
    for one in requests:
        for each in one.primitives:
            engines.setdefault(each.engine, RecordedEngine(each.engine))
    return Recording(requests, engines=engines)


@st.composite
def any_request(draw: st.DrawFn) -> RecordedRequest:
    """Draw a request of up to eight primitives in whole seconds, so that sums are exact."""
    seconds = st.integers(0, 9)
    arrived = draw(seconds)
    made: list[RecordedPrimitive] = []
    for place in range(draw(st.integers(0, 8))):
        before = [one for one in made if draw(st.booleans())]
        ready = max((one.ended_s for one in before), default=arrived) + draw(seconds)
        start = ready + draw(seconds)
        names = [one.name for one in before]
        made.append(primitive(f"p{place}", start, start + draw(seconds), *names, ready_s=ready))
    made.sort(key=lambda one: one.started_s)
    last = max((one.ended_s for one in made), default=arrived)
    return request(*made, arrived=arrived, ended=last + draw(seconds))


class Watcher:
    """Be a sink that lets a test wait until a number of primitives has ended."""

    def __init__(self) -> None:
        self._ended = threading.Semaphore(0)

    def write(self, event: TraceEvent) -> None:
        self._ended.release()

    def close(self) -> None:
        """Have nothing to close."""

    def wait_for_end(self) -> None:
        assert self._ended.acquire(timeout=PATIENCE_S), "no primitive ended"


@contextmanager
def on_clock(monkeypatch: pytest.MonkeyPatch, clock: ManualClock, **parts: Any) -> Iterator[Any]:
    """Open an accelerator that reads this clock, with a ``Watcher`` of ended primitives."""
    monkeypatch.setattr(MonotonicClock, "now", lambda _: clock.now())
    with Accelerator(shutdown_s=PATIENCE_S, batch_wait_ms=0.0, **parts) as accelerator:
        watcher = Watcher()
        accelerator.tracer.add_sink(watcher, kinds=[NodeFinished])
        yield accelerator, watcher


def settle(accelerator: Accelerator) -> None:
    """Return once everything posted so far by this thread was dealt with."""
    assert accelerator.metrics is not None


def search_and_answer() -> RAGraph:
    """Return a graph of a retrieval and a generation that reads it."""
    graph = RAGraph()
    graph.add_retrieval("search", top_k=2, output="docs")
    graph.add_generation("answer", prompt="{input}: {docs}")
    graph.add_edge(START, "search").add_edge("search", "answer").add_edge("answer", END)
    return graph


def engines_of(wait: Any, durations_s: Mapping[str, Sequence[float]]) -> dict[str, FakeEngine]:
    """Return engines by role whose first steps take so many seconds."""
    profiles = {"llm": DECODER}
    return {
        role: FakeEngine(profiles.get(role, FAKE_PROFILE), durations_s=durations, wait=wait)
        for role, durations in durations_s.items()
    }

"""The observer records what a profile needs, forgets what has ended, and costs little unwanted."""

from __future__ import annotations

from typing import Any

import pytest
from accel_harness import opened, settle

from rag_accel import END, START, RAGraph
from rag_accel.accelerator.observer import SchedulerObserver
from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.scheduler.messages import (
    BorrowedEngineAdded,
    CallEnded,
    CallMade,
    EngineLeft,
    EngineName,
    Event,
    LeafArrived,
    NodeCancelled,
    NodeKey,
    NodeReport,
    NodeSpec,
    OwnedEngineAdded,
    Reported,
    RequestArrived,
    RequestClosed,
    RequestId,
    RequestOpened,
    StepEnded,
    StepFailed,
    StepId,
)
from rag_accel.scheduler.state import CoreOptions, SchedulerState
from rag_accel.scheduler.transitions import handle
from rag_accel.telemetry import MemorySink, Metrics, TraceEvent, Tracer
from rag_accel.telemetry.events import (
    EngineJoined,
    NodeDispatched,
    NodeFinished,
    RequestEnded,
    RequestStarted,
    SingleFlightJoined,
    StepStarted,
)
from rag_accel.testing import FakeEngine

ONE, TWO = RequestId(1), RequestId(2)


class Watched:
    """Be a core whose events go through an observer."""

    def __init__(self, *kinds: type[TraceEvent], max_requests: int = 8) -> None:
        self.state = SchedulerState(CoreOptions(max_requests=max_requests, batch_wait_s=0))
        self.sink, self.tracer = MemorySink(), Tracer(0)
        if kinds:
            self.tracer.add_sink(self.sink, kinds=kinds)
        self.observer = SchedulerObserver(Metrics(), self.tracer)
        self.tell(OwnedEngineAdded(EngineName("own"), 100))
        self.tell(BorrowedEngineAdded(EngineName("any")))

    def tell(self, event: Event, at: float = 0.0) -> None:
        self.observer.observe(event, handle(self.state, event, at), at, self.state)

    def end_step(self, at: float, ok: bool = True) -> None:
        engine = self.state.engines[EngineName("own")]
        assert engine.step is not None
        if ok:
            reports = tuple(NodeReport(key, "final") for key in engine.running)
            self.tell(StepEnded(engine.name, engine.step, reports, 0.5), at)
        else:
            self.tell(StepFailed(engine.name, engine.step, 0.5), at)

    def held(self) -> list[Any]:
        """Return what the observer still remembers of single nodes."""
        seen: Any = self.observer
        return [*seen._running, *seen._grown, *seen._sharing, *seen._calls, *seen._steps]


def node(name: str, engine: str = "any", *after: str, **parts: Any) -> NodeSpec:
    return NodeSpec(name, EngineName(engine), PrimitiveKind.DECODING, after, **parts)


def leaf(request: RequestId, name: str, engine: str = "own", share: Any = None) -> LeafArrived:
    return LeafArrived(request, node(name, engine, share=share), 0.0)


def ended(request: RequestId, name: str, ok: bool = True, *append: NodeSpec) -> CallEnded:
    return CallEnded(NodeKey(request, name), EngineName("any"), ok, append)


def test_a_dispatched_node_tells_all_that_is_known_of_it() -> None:
    watched = Watched(NodeDispatched)
    first, second = node("a", depth=3), node("b", "own", "a", depth=2, size=4)
    watched.tell(RequestArrived(ONE, (first, second), 0.0), 1.0)
    watched.tell(ended(ONE, "a"), 3.0)
    assert watched.sink.events == (
        NodeDispatched(1.0, 1, "a", "any", 0.0, "DECODING", (), 3, 1),
        NodeDispatched(3.0, 1, "b", "own", 0.0, "DECODING", ("a",), 2, 4),
    )


def test_a_finished_node_tells_where_and_how_long_it_ran() -> None:
    watched = Watched(NodeFinished)
    watched.tell(RequestArrived(ONE, (node("a"), node("b", "own", "a")), 0.0), 1.0)
    watched.tell(ended(ONE, "a"), 3.0)
    watched.end_step(3.5)
    assert watched.sink.events == (
        NodeFinished(3.0, 1, "a", "any", "done", 2.0),
        NodeFinished(3.5, 1, "b", "own", "done", 0.5),
    )
    assert watched.held() == []


def test_engines_are_told_to_sinks_that_come_later() -> None:
    watched = Watched()
    watched.tracer.add_sink(watched.sink)
    assert watched.sink.events == (
        EngineJoined(0.0, "own", owned=True, stepped=False, capacity=64),
        EngineJoined(0.0, "any", owned=False, stepped=False, capacity=None),
    )


@pytest.mark.parametrize(
    ("event", "origin"),
    [
        (RequestArrived(ONE, (node("a"),), 0.5), "graph"),
        (RequestOpened(ONE, "program", 0.5), "program"),
        (LeafArrived(ONE, node("leaf1"), 0.5), "leaf"),
    ],
)
def test_a_request_starts_when_it_arrived(event: Event, origin: Any) -> None:
    watched = Watched(RequestStarted)
    watched.tell(event, 1.0)
    assert watched.sink.events == (RequestStarted(0.5, 1, origin),)


def test_leaves_of_a_program_or_a_graph_start_no_request() -> None:
    watched = Watched(RequestStarted)
    watched.tell(RequestOpened(ONE, "program", 0.0))
    watched.tell(RequestArrived(TWO, (node("a"),), 0.0))
    watched.sink.clear()
    watched.tell(leaf(ONE, "leaf1"))
    watched.tell(leaf(TWO, "leaf1"))
    assert watched.sink.events == ()


def test_a_program_ends_when_its_caller_leaves() -> None:
    watched = Watched(RequestEnded)
    watched.tell(RequestOpened(ONE, "program", 0.0))
    watched.tell(RequestClosed(ONE, 2.0), 2.0)
    assert watched.sink.events == (RequestEnded(2.0, 1, "done"),)


def test_what_still_runs_when_its_graph_fails_ends_as_cancelled() -> None:
    watched = Watched(NodeFinished, RequestEnded)
    watched.tell(RequestArrived(ONE, (node("a"), node("b")), 0.0), 1.0)
    watched.tell(ended(ONE, "a", False), 3.0)
    assert watched.sink.events == (
        NodeFinished(3.0, 1, "a", "any", "failed", 2.0),
        NodeFinished(3.0, 1, "b", "any", "cancelled", 2.0),
        RequestEnded(3.0, 1, "failed", "a"),
    )
    watched.tell(ended(ONE, "b"), 4.0)
    assert watched.held() == []


def test_what_a_condition_adds_comes_after_it() -> None:
    watched = Watched(NodeDispatched)
    watched.tell(RequestArrived(ONE, (node("start"), node("choose", "any", "start")), 0.0))
    watched.tell(ended(ONE, "start"))
    added = (node("first", "any", "start"), node("second", "any", "first"))
    watched.tell(ended(ONE, "choose", True, *added))
    watched.tell(ended(ONE, "first"))
    after = {event.node: event.after for event in watched.sink.events}  # type: ignore[attr-defined]
    assert after == {
        "start": (),
        "choose": ("start",),
        "first": ("start", "choose"),
        "second": ("first",),
    }
    watched.tell(ended(ONE, "second"))
    assert watched.held() == []


def test_a_shared_run_is_told_for_the_callers_that_waited_for_it() -> None:
    watched = Watched(SingleFlightJoined, NodeFinished)
    watched.tell(leaf(ONE, "leaf1", share="key"), 1.0)
    watched.tell(leaf(TWO, "leaf1", share="key"), 2.0)
    watched.end_step(5.0)
    assert watched.sink.events == (
        NodeFinished(5.0, 1, "leaf1", "own", "done", 4.0),
        SingleFlightJoined(5.0, 2, "leaf1", "own", (1, "leaf1"), 3.0),
        NodeFinished(5.0, 2, "leaf1", "own", "done", 0.0),
    )
    assert watched.held() == []


def test_a_follower_that_is_cancelled_is_forgotten() -> None:
    watched = Watched(SingleFlightJoined, NodeFinished)
    watched.tell(leaf(ONE, "leaf1", share="key"))
    watched.tell(leaf(TWO, "leaf1", share="key"))
    watched.tell(NodeCancelled(NodeKey(TWO, "leaf1")), 1.0)
    watched.end_step(5.0)
    assert [(event.time_s, event.outcome) for event in watched.sink.events] == [  # type: ignore[attr-defined]
        (1.0, "cancelled"),
        (5.0, "done"),
    ]
    assert watched.held() == []


def test_a_node_that_is_retried_has_been_ready_all_the_time() -> None:
    watched = Watched(NodeDispatched, NodeFinished)
    watched.tell(RequestArrived(ONE, (node("a", "own"), node("b", "own")), 0.0))
    watched.end_step(2.0, ok=False)
    watched.end_step(3.0)
    watched.end_step(4.0)
    waited = {(e.node, e.waited_s) for e in watched.sink.events if isinstance(e, NodeDispatched)}
    assert waited == {("a", 0.0), ("b", 0.0), ("a", 2.0), ("b", 3.0)}
    assert watched.held() == []


def test_a_step_names_all_its_members() -> None:
    watched = Watched(StepStarted)
    watched.tell(RequestArrived(ONE, (node("a", "own"), node("b", "own")), 0.0))
    (event,) = watched.sink.events
    assert isinstance(event, StepStarted)
    assert event.members == ((1, "a"), (1, "b"))


def test_nothing_is_remembered_when_no_sink_looks() -> None:
    watched = Watched()
    watched.tell(RequestArrived(ONE, (node("a", "own"), node("b")), 0.0))
    watched.tell(leaf(TWO, "leaf1", share="key"))
    assert watched.held() == [NodeKey(ONE, "b"), "own"]


def test_what_is_not_looked_at_any_more_is_forgotten() -> None:
    watched = Watched(NodeFinished, SingleFlightJoined, NodeDispatched)
    watched.tell(leaf(ONE, "leaf1", share="key"))
    watched.tracer.remove_sink(watched.sink)
    watched.end_step(1.0)
    assert watched.held() == []


def test_every_node_that_was_dispatched_in_a_real_run_has_finished() -> None:
    graph = RAGraph()
    graph.add_retrieval("search", top_k=2, output="docs")
    graph.add_generation("answer", prompt="{input}: {docs}")
    graph.add_edge(START, "search").add_edge("search", "answer").add_edge("answer", END)
    with opened(llm=FakeEngine(), embedder=FakeEngine(), index=FakeEngine()) as acc:
        for number in range(5):
            acc.run(graph, input=str(number))
        settle(acc)
        events = acc.tracer.events()
    began = [(e.request_id, e.node, e.engine) for e in events if isinstance(e, NodeDispatched)]
    over = [(e.request_id, e.node, e.engine) for e in events if isinstance(e, NodeFinished)]
    assert sorted(began) == sorted(over)
    assert len([e for e in events if isinstance(e, RequestStarted)]) == 5
    assert len([e for e in events if isinstance(e, RequestEnded)]) == 5


def embedding(request: RequestId, size: int) -> LeafArrived:
    spec = NodeSpec("leaf1", EngineName("own"), PrimitiveKind.EMBEDDING, size=size)
    return LeafArrived(request, spec, 0.0)


def test_items_count_once_however_many_steps_hold_them() -> None:
    watched = Watched()
    metrics = watched.observer._metrics
    watched.tell(OwnedEngineAdded(EngineName("polled"), 100, stepped=True))
    spec = NodeSpec("leaf1", EngineName("polled"), PrimitiveKind.EMBEDDING, size=3)
    watched.tell(LeafArrived(ONE, spec, 0.0))
    for step in range(1, 5):
        watched.tell(StepEnded(EngineName("polled"), StepId(step), (), 0.01))
    done = (NodeReport(NodeKey(ONE, "leaf1"), "final"),)
    watched.tell(StepEnded(EngineName("polled"), StepId(5), done, 0.01))
    cells = metrics.engine("polled")
    assert (cells.items.value, cells.steps.value) == (3, 5)
    sizes = cells.batch_size.snapshot()
    assert (sizes["count"], sizes["sum"]) == (1, 3.0)


def test_items_that_are_retried_alone_count_once() -> None:
    watched = Watched()
    for request in (ONE, TWO):
        watched.tell(embedding(request, 2), 0.0)
    step = watched.state.engines[EngineName("own")].step
    assert step is not None
    watched.tell(StepFailed(EngineName("own"), step, 0.1))
    assert watched.observer._metrics.engine("own").items.value <= 4
    while (step := watched.state.engines[EngineName("own")].step) is not None:
        (node,) = watched.state.engines[EngineName("own")].running
        watched.tell(StepEnded(EngineName("own"), step, (NodeReport(node, "final"),), 0.1))
    assert watched.observer._metrics.engine("own").items.value == 4


def test_an_engine_that_left_is_forgotten() -> None:
    watched = Watched()
    watched.tracer.add_sink(MemorySink())
    ring = Tracer(8)
    observer = SchedulerObserver(Metrics(), ring)
    state = SchedulerState(CoreOptions())
    for number in range(20):
        name = EngineName(f"retrieval#{number}")
        for event in (OwnedEngineAdded(name, 1), EngineLeft(name)):
            observer.observe(event, handle(state, event, 0.0), 0.0, state)
    assert ring.events() == ()


def test_a_call_made_at_once_is_traced_with_its_own_times() -> None:
    watched = Watched(RequestStarted, NodeDispatched, NodeFinished)
    kind = PrimitiveKind.DECODING
    call = CallMade(ONE, "leaf1", EngineName("any"), kind, 0.5, 1.0, 3.0, False)
    watched.tell(Reported((call,)), 9.0)
    assert watched.sink.events == (
        RequestStarted(0.5, 1, "leaf"),
        NodeDispatched(1.0, 1, "leaf1", "any", 0.0, kind),
        NodeFinished(3.0, 1, "leaf1", "any", "failed", 2.0),
    )
    cells = watched.observer._metrics.engine("any")
    assert (cells.items.value, cells.failures.value) == (1, 1)

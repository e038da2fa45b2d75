"""Every kind of event that a trace can hold is told by something that happens."""

from __future__ import annotations

from typing import Any

from rag_accel.accelerator.observer import SchedulerObserver
from rag_accel.engine_api import PromptUse, TokenUsage
from rag_accel.engine_api.kinds import PrimitiveKind
from rag_accel.scheduler.messages import (
    EngineName,
    Event,
    Fallback,
    LeafArrived,
    NodeCancelled,
    NodeKey,
    NodeReport,
    NodeSpec,
    OwnedEngineAdded,
    RequestArrived,
    RequestId,
    StepEnded,
    Tick,
)
from rag_accel.scheduler.state import CoreOptions, SchedulerState
from rag_accel.scheduler.transitions import handle
from rag_accel.telemetry import EVENT_TYPES, MemorySink, Metrics, TraceEvent, Tracer
from rag_accel.telemetry.events import (
    EngineLost,
    FallbackStarted,
    FirstOutput,
    NodeDispatched,
    NodeFinished,
    NodeRetried,
    TokensUsed,
)
from rag_accel.telemetry.events import (
    StepEnded as StepEndedEvent,
)

ENGINE = EngineName("llm")


class Watched:
    """Be a core with one stepped engine, whose events go through an observer."""

    def __init__(self, *kinds: type[TraceEvent], **parts: Any) -> None:
        self.state = SchedulerState(CoreOptions(step_timeout_s=10, batch_wait_s=0))
        self.sink, tracer = MemorySink(), Tracer(0)
        tracer.add_sink(self.sink, kinds=kinds)
        self.observer = SchedulerObserver(Metrics(), tracer)
        self.tell(OwnedEngineAdded(ENGINE, 8, stepped=True, **parts))

    def tell(self, event: Event, at: float = 0.0) -> None:
        self.observer.observe(event, handle(self.state, event, at), at, self.state)

    def leaf(self, request: int, at: float = 0.0, **parts: Any) -> NodeKey:
        node = NodeSpec("n", ENGINE, parts.pop("kind", PrimitiveKind.DECODING), **parts)
        self.tell(LeafArrived(RequestId(request), node, at), at)
        return NodeKey(RequestId(request), "n")

    def end_step(
        self, at: float, *reports: tuple[NodeKey, Any], used: TokenUsage | None = None
    ) -> None:
        step = self.state.engines[ENGINE].step
        assert step is not None
        told = tuple(NodeReport(key, kind, used) for key, kind in reports)
        self.tell(StepEnded(ENGINE, step, told, 0.5), at)

    def fail_twice(self, request: int, at: float) -> None:
        """Let a node with one further attempt and a fallback fail until the fallback is over."""
        decoding = PrimitiveKind.DECODING
        fallback = Fallback("n", (), (NodeSpec("other", ENGINE, decoding),))
        node = NodeSpec("n", ENGINE, decoding, backoffs_s=(0.0,), fallback=fallback)
        self.tell(RequestArrived(RequestId(request), (node,), at), at)
        for _ in range(2):
            self.fail(NodeKey(RequestId(request), "n"), at)
        self.end_step(at, (NodeKey(RequestId(request), "other"), "final"))

    def fail(self, key: NodeKey, at: float) -> None:
        step = self.state.engines[ENGINE].step
        assert step is not None
        told = (NodeReport(key, "error", None, 0.0),)
        self.tell(StepEnded(ENGINE, step, told, 0.5), at)


def test_a_node_that_is_tried_again_and_replaced_finishes_once() -> None:
    watched = Watched(NodeRetried, FallbackStarted, NodeFinished)
    watched.fail_twice(1, 1.0)
    assert list(watched.sink.events) == [
        NodeRetried(1.0, 1, "n", "llm", 1, 0.0),
        FallbackStarted(1.0, 1, "n", "llm", ("other",)),
        NodeFinished(1.0, 1, "other", "llm", "done"),
        NodeFinished(1.0, 1, "n", "", "done"),
    ]


def test_every_kind_of_event_is_emitted_somewhere() -> None:
    watched = Watched(*EVENT_TYPES)
    node = NodeSpec("n", ENGINE, PrimitiveKind.DECODING, share="s")
    for request in (1, 2):
        watched.tell(RequestArrived(RequestId(request), (node,), 0.0))
    key = NodeKey(RequestId(1), "n")
    watched.end_step(1.0, (key, "partial"), (key, "final"), used=TokenUsage())
    watched.fail_twice(4, 1.0)
    watched.leaf(3, 2.0)
    watched.tell(Tick(), 12.0)
    told = {type(event) for event in watched.sink.events}
    assert told == set(EVENT_TYPES)


def test_a_first_output_is_told_with_the_step_that_brought_it() -> None:
    watched = Watched(FirstOutput)
    one, two = watched.leaf(1), watched.leaf(2)
    watched.end_step(1.0, (one, "partial"))
    watched.end_step(2.0, (one, "final"), (two, "partial"), (two, "final"))
    assert watched.sink.events == (
        FirstOutput(1.0, 1, "n", "llm"),
        FirstOutput(2.0, 2, "n", "llm"),
    )


def test_the_tokens_of_a_generation_are_told_when_it_ends() -> None:
    watched = Watched(TokensUsed, NodeFinished)
    key = watched.leaf(1)
    watched.end_step(1.0, (key, "final"), used=TokenUsage(PromptUse(1, 2, 3, 4, 5, 6, 8), 7, 1))
    used, finished = watched.sink.events
    assert used == TokensUsed(
        1.0, 1, "n", "llm", 1, 2, 3, 4, 5, 6, completion_tokens=7, documents=8
    )
    assert isinstance(finished, NodeFinished)


def test_what_was_cancelled_meanwhile_has_no_first_output() -> None:
    watched = Watched(FirstOutput)
    one = watched.leaf(1)
    watched.tell(NodeCancelled(one), 0.5)
    watched.end_step(1.0, (one, "partial"))
    assert watched.sink.events == ()


def test_a_lost_engine_is_told_once_for_each_step_it_does_not_come_back_from() -> None:
    watched = Watched(EngineLost)
    watched.leaf(1)
    watched.leaf(2, 0.5)
    watched.tell(Tick(), 11.0)
    watched.leaf(3, 12.0)
    watched.end_step(13.0)
    watched.leaf(4, 14.0)
    watched.tell(Tick(), 30.0)
    assert watched.sink.events == (EngineLost(11.0, "llm", 1), EngineLost(30.0, "llm", 2))


def test_a_node_that_enters_in_parts_is_dispatched_and_finished_once() -> None:
    watched = Watched(NodeDispatched, NodeFinished, StepEndedEvent, itemwise=True)
    key = watched.leaf(1, kind=PrimitiveKind.EMBEDDING, size=20)
    for at in (1.0, 2.0, 3.0, 4.0):
        watched.end_step(at, (key, "part"))
    watched.end_step(5.0, (key, "final"))
    events = watched.sink.events
    assert [type(event).__name__ for event in events if not isinstance(event, StepEndedEvent)] == [
        "NodeDispatched",
        "NodeFinished",
    ]
    assert events[-1] == NodeFinished(5.0, 1, "n", "llm", "done", 5.0)
    assert sum(isinstance(event, StepEndedEvent) for event in events) == 5

"""What one event costs does not grow with the number of live requests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from core_harness import key, spec

from rag_accel.scheduler.messages import (
    BorrowedEngineAdded,
    CallEnded,
    EngineName,
    Event,
    LeafArrived,
    NodeReport,
    OwnedEngineAdded,
    RequestArrived,
    RequestId,
    RequestOpened,
    StepEnded,
    StepId,
)
from rag_accel.scheduler.state import CoreOptions, SchedulerState
from rag_accel.scheduler.transitions import handle

LEAF = RequestId(1_000_000)


def count_opcodes(act: Callable[[], object]) -> int:
    """Return how many bytecodes a call executes: a cost that does not depend on the machine."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


class Crowd:
    """Hold a core with so many live requests of one shape."""

    def __init__(self, num_requests: int) -> None:
        self.state = SchedulerState(CoreOptions(max_requests=num_requests + 10))
        self.now = 0.0
        for event in (
            OwnedEngineAdded(EngineName("e"), max_batch=64),
            OwnedEngineAdded(EngineName("s"), max_batch=64, stepped=True, interruptible=True),
            BorrowedEngineAdded(EngineName("b")),
            BorrowedEngineAdded(EngineName("limited"), max_concurrency=8),
        ):
            self.send(event)
        for engine in ("e", "b", "limited"):
            self.leaf(engine)
            self.end(engine)

    def send(self, event: Event) -> None:
        self.now += 1e-5
        handle(self.state, event, self.now)

    def leaf(self, engine: str) -> None:
        self.send(LeafArrived(LEAF, spec("leaf", engine), 0.0))

    def end(self, engine: str) -> None:
        run = self.state.engines[EngineName(engine)]
        node = next(iter(run.running))
        if run.step is None:
            self.send(CallEnded(node, run.name, True))
        else:
            reports = tuple(NodeReport(node, "final") for node in run.running)
            self.send(StepEnded(run.name, StepId(run.step), reports, 0.1))


def idle_programs(crowd: Crowd, num_requests: int) -> None:
    crowd.send(RequestOpened(RequestId(-1), "p", 0.0))
    crowd.send(LeafArrived(RequestId(-1), spec("leaf"), 0.0))
    crowd.end("e")
    for request in range(num_requests):
        crowd.send(RequestOpened(RequestId(request), "p", 0.0))


def graphs_in_calls(crowd: Crowd, num_requests: int) -> None:
    for request in range(num_requests):
        nodes = (spec("a", "b"), spec("b", "e", "a"), spec("c", "limited", "a", "b"))
        crowd.send(RequestArrived(RequestId(request), nodes, 0.0))


def leaves_in_calls(crowd: Crowd, num_requests: int) -> None:
    for request in range(num_requests):
        crowd.send(LeafArrived(RequestId(request), spec("a", "b"), 0.0, deadline=1e6))


def leaves_of_one_program(crowd: Crowd, num_requests: int) -> None:
    crowd.send(RequestOpened(RequestId(0), "p", 0.0))
    for index in range(num_requests):
        crowd.send(LeafArrived(RequestId(0), spec(str(index), "b", depth=index % 3), 0.0))


def calls_held_back(crowd: Crowd, num_requests: int) -> None:
    for request in range(num_requests):
        crowd.send(LeafArrived(RequestId(request), spec("a", "limited"), 0.0))


SHAPES = (
    idle_programs,
    graphs_in_calls,
    leaves_in_calls,
    leaves_of_one_program,
    calls_held_back,
)


def costs(shape: Callable[[Crowd, int], None], num_requests: int) -> dict[str, int]:
    """Return the bytecodes of single events beside so many live requests."""
    crowd = Crowd(num_requests)
    shape(crowd, num_requests)
    returned = CallEnded(key(LEAF, "leaf"), EngineName("b"), True)
    found = {
        "e arrives": count_opcodes(lambda: crowd.leaf("e")),
        "e ends": count_opcodes(lambda: crowd.end("e")),
        "b arrives": count_opcodes(lambda: crowd.leaf("b")),
        "b ends": count_opcodes(lambda: crowd.send(returned)),
    }
    if len(crowd.state.engines[EngineName("limited")].queue):
        found["limited ends"] = count_opcodes(lambda: crowd.end("limited"))
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_events_cost_about_the_same_beside_a_thousand_requests(
    shape: Callable[[Crowd, int], None],
) -> None:
    few, many = costs(shape, 20), costs(shape, 1000)
    assert few.keys() == many.keys()
    for event, cost in many.items():
        assert cost <= 1.1 * few[event], f"{event}: {few[event]} -> {cost}"

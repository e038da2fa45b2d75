"""Calls of borrowed engines are admitted, never held back without need."""

from __future__ import annotations

from core_harness import Core, key, spec

from rag_accel.scheduler.commands import EndNode, StartCall
from rag_accel.scheduler.messages import CallEnded, EngineName, LeafArrived, RequestId, Tick


def begun(request: int, name: str) -> LeafArrived:
    """Return the arrival of a call that did not wait to be let in."""
    return LeafArrived(RequestId(request), spec(name, "b"), 0.0, begun=True)


def test_a_call_that_has_begun_is_admitted_although_there_is_no_room() -> None:
    core = Core(max_requests=1)
    core.borrow()
    core.leaf(1, "a", "b")
    core.open(2)
    assert 2 in core.state.pending
    assert core.send(begun(2, "x"), more=True) == [StartCall(key(2, "x"), "b")]
    assert core.send(begun(3, "x"), more=True) == [StartCall(key(3, "x"), "b")]
    core.send(CallEnded(key(3, "x"), EngineName("b"), True), more=True)
    assert set(core.state.requests) == {1, 2}


def test_a_call_may_begin_and_end_before_anything_else_is_looked_at() -> None:
    core = Core()
    core.borrow()
    core.send(begun(1, "a"), more=True)
    ended = core.send(CallEnded(key(1, "a"), EngineName("b"), True), more=True)
    assert ended == [EndNode.match(node=key(1, "a"), outcome="done")]
    assert core.send(Tick()) == []
    assert core.state.is_empty()


def test_an_unbounded_engine_never_holds_a_call_back() -> None:
    core = Core()
    core.borrow()
    for request in range(100):
        assert core.leaf(request, "a", "b") == [StartCall(key(request, "a"), "b")]


def test_no_more_calls_run_than_the_engine_allows() -> None:
    core = Core()
    core.borrow(limit=2)
    assert core.leaf(1, "a", "b") != []
    assert core.leaf(2, "a", "b") != []
    assert core.leaf(3, "a", "b") == []
    assert core.leaf(4, "a", "b") == []
    assert core.end_call(1, "a") == [
        EndNode.match(node=key(1, "a"), outcome="done"),
        StartCall(key(3, "a"), "b"),
    ]


def test_a_call_counts_once_whatever_its_size() -> None:
    core = Core()
    core.borrow(limit=2)
    assert core.leaf(1, "a", "b", size=50) == [StartCall(key(1, "a"), "b")]
    assert core.leaf(2, "a", "b", size=50) == [StartCall(key(2, "a"), "b")]
    assert core.leaf(3, "a", "b", size=50) == []


def test_shallower_calls_of_a_request_use_permits_that_would_be_idle() -> None:
    core = Core()
    core.borrow(limit=3)
    assert core.graph(1, spec("shallow", "b", depth=1), spec("deep", "b", depth=5)) == [
        StartCall(key(1, "deep"), "b"),
        StartCall(key(1, "shallow"), "b"),
    ]


def test_an_unbounded_engine_starts_a_whole_fan_out_at_once() -> None:
    core = Core()
    core.borrow()
    nodes = [spec(str(index), "b", depth=index % 4, size=7) for index in range(40)]
    assert len(core.graph(1, *nodes)) == 40


def test_free_permits_go_to_the_deepest_calls_of_the_oldest_request() -> None:
    core = Core()
    core.borrow(limit=1)
    core.leaf(9, "held", "b", at=0)
    core.graph(1, spec("shallow", "b", depth=1), spec("deep", "b", depth=9), at=1)
    core.leaf(2, "young", "b", at=2)
    assert core.end_call(9, "held", at=3)[-1] == StartCall(key(1, "deep"), "b")
    assert core.end_call(1, "deep", at=4)[-1] == StartCall(key(1, "shallow"), "b")
    assert core.end_call(1, "shallow", at=5)[-1] == StartCall(key(2, "young"), "b")


def test_a_failed_call_gives_its_permit_back() -> None:
    core = Core()
    core.borrow(limit=1)
    core.leaf(1, "a", "b")
    core.leaf(2, "a", "b")
    assert core.end_call(1, "a", ok=False) == [
        EndNode.match(node=key(1, "a"), outcome="failed"),
        StartCall(key(2, "a"), "b"),
    ]

"""Calls of borrowed engines are admitted, never held back without need."""

from __future__ import annotations

from core_harness import Core, key, spec

from rag_accel.scheduler.commands import EndNode, StartCall
from rag_accel.scheduler.messages import ProgramLeft, RequestId


def test_a_call_that_was_made_without_asking_leaves_nothing_behind() -> None:
    core = Core().borrow()
    assert core.made(1, 0.0, 1.0) == []
    assert core.state.is_empty()
    assert core.engine("b").node_mean_s == 1.0


def test_a_program_has_been_where_it_made_its_last_call() -> None:
    core = Core().own().borrow()
    core.open(1, at=0.0)
    core.made(1, 0.25, 1.0)
    core.leaf(1, "a", at=1.5)
    assert core.state.programs["p"].gaps == {"b": {"e": 0.5}}


def test_of_calls_made_beside_each_other_the_one_that_ended_last_counts() -> None:
    core = Core().own().borrow().borrow("c")
    core.open(1, at=0.0)
    core.made(1, 0.25, 2.0, "c")
    core.made(1, 0.5, 1.0)
    assert core.state.requests[RequestId(1)].idle_since == 2.0
    core.leaf(1, "a", at=2.5)
    assert core.state.programs["p"].gaps == {"c": {"e": 0.5}}


def test_a_call_made_beside_owned_work_leaves_its_request_busy() -> None:
    core = Core().own().borrow()
    core.open(1, at=0.0)
    core.leaf(1, "a", at=0.5)
    core.made(1, 0.25, 1.0)
    assert not core.state.idle
    core.end_step(at=2.0)
    assert list(core.state.idle) == [("p", "e")]


def test_a_call_made_for_a_program_that_waits_to_be_admitted_teaches_nothing() -> None:
    core = Core(max_requests=1).borrow()
    core.open(1)
    core.open(2)
    assert core.made(2, 0.5, 1.0) == []
    assert not core.state.programs
    assert 2 in core.state.pending


def test_a_program_that_has_left_is_forgotten() -> None:
    core = Core().borrow()
    core.open(1)
    core.made(1, 0.5, 1.0)
    core.close_program(1)
    core.send(ProgramLeft("p"))
    core.send(ProgramLeft("unknown"))
    assert not core.state.programs


def test_an_unbounded_engine_never_holds_a_call_back() -> None:
    core = Core().borrow()
    for request in range(100):
        assert core.leaf(request, "a", "b") == [StartCall(key(request, "a"), "b")]


def test_no_more_calls_run_than_the_engine_allows() -> None:
    core = Core().borrow(limit=2)
    assert core.leaf(1, "a", "b") != []
    assert core.leaf(2, "a", "b") != []
    assert core.leaf(3, "a", "b") == []
    assert core.leaf(4, "a", "b") == []
    assert core.end_call(1, "a") == [
        EndNode.match(node=key(1, "a"), outcome="done"),
        StartCall(key(3, "a"), "b"),
    ]


def test_a_call_counts_once_whatever_its_size() -> None:
    core = Core().borrow(limit=2)
    assert core.leaf(1, "a", "b", size=50) == [StartCall(key(1, "a"), "b")]
    assert core.leaf(2, "a", "b", size=50) == [StartCall(key(2, "a"), "b")]
    assert core.leaf(3, "a", "b", size=50) == []


def test_shallower_calls_of_a_request_use_permits_that_would_be_idle() -> None:
    core = Core().borrow(limit=3)
    assert core.graph(1, spec("shallow", "b", depth=1), spec("deep", "b", depth=5)) == [
        StartCall(key(1, "deep"), "b"),
        StartCall(key(1, "shallow"), "b"),
    ]


def test_an_unbounded_engine_starts_a_whole_fan_out_at_once() -> None:
    core = Core().borrow()
    nodes = [spec(str(index), "b", depth=index % 4, size=7) for index in range(40)]
    assert len(core.graph(1, *nodes)) == 40


def test_free_permits_go_to_the_deepest_calls_of_the_oldest_request() -> None:
    core = Core().borrow(limit=1)
    core.leaf(9, "held", "b", at=0)
    core.graph(1, spec("shallow", "b", depth=1), spec("deep", "b", depth=9), at=1)
    core.leaf(2, "young", "b", at=2)
    assert core.end_call(9, "held", at=3)[-1] == StartCall(key(1, "deep"), "b")
    assert core.end_call(1, "deep", at=4)[-1] == StartCall(key(1, "shallow"), "b")
    assert core.end_call(1, "shallow", at=5)[-1] == StartCall(key(2, "young"), "b")


def test_a_failed_call_gives_its_permit_back() -> None:
    core = Core().borrow(limit=1)
    core.leaf(1, "a", "b")
    core.leaf(2, "a", "b")
    assert core.end_call(1, "a", ok=False) == [
        EndNode.match(node=key(1, "a"), outcome="failed"),
        StartCall(key(2, "a"), "b"),
    ]

"""A deadline belongs to the request and reaches all it has, wherever that is."""

from __future__ import annotations

from core_harness import Core, key, spec

from rag_accel.scheduler.commands import CancelWork, EndNode, EndRequest, StartCall, StartStep
from rag_accel.scheduler.messages import LeafArrived, RequestId


def test_the_core_asks_to_be_woken_at_the_earliest_deadline() -> None:
    core = Core(step_timeout_s=100).own()
    core.leaf(1, "a", deadline=50)
    core.leaf(2, "a", deadline=70)
    core.leaf(3, "a", deadline=20)
    assert core.wakes == [50, 20]


def test_a_queued_node_ends_at_its_deadline() -> None:
    core = Core().own()
    core.leaf(1, "a")
    core.leaf(2, "a", deadline=5)
    assert core.tick(4.9) == []
    assert core.tick(5) == [EndNode.match(node=key(2, "a"), outcome="deadline")]
    assert core.end_step(at=6) == [EndNode.match(node=key(1, "a"))]


def test_a_node_running_in_a_batch_ends_and_its_late_result_is_dropped() -> None:
    core = Core().own()
    core.leaf(1, "a", deadline=5)
    assert core.tick(5) == [EndNode.match(node=key(1, "a"), outcome="deadline")]
    assert core.end_step(at=6) == []
    assert core.state.is_empty()


def test_a_node_held_by_a_stepped_engine_is_taken_off_it() -> None:
    core = Core().own(stepped=True)
    core.leaf(1, "a", deadline=5)
    assert core.tick(5) == [
        CancelWork.match(nodes=(key(1, "a"),)),
        EndNode.match(outcome="deadline"),
    ]


def test_a_request_that_waits_for_admission_ends_at_its_deadline() -> None:
    core = Core(max_requests=1).borrow()
    core.leaf(9, "held", "b")
    core.graph(1, spec("a", "b"), deadline=5)
    assert core.tick(5) == [EndRequest.match(request=1, outcome="deadline")]


def test_a_request_past_its_deadline_on_arrival_is_refused() -> None:
    core = Core().own()
    assert core.graph(1, spec("a"), at=3, deadline=3) == [EndRequest.match(outcome="deadline")]
    assert core.leaf(2, "a", at=3, deadline=2) == [EndNode.match(outcome="deadline")]
    assert core.state.is_empty()


def test_a_leaf_of_a_program_past_its_deadline_ends_at_once() -> None:
    core = Core().own()
    core.open(1, deadline=5)
    assert core.leaf(1, "a", at=5) == [EndNode.match(node=key(1, "a"), outcome="deadline")]


def test_all_leaves_of_a_program_end_at_its_deadline() -> None:
    core = Core().own().borrow()
    core.open(1, deadline=5)
    core.leaf(1, "a")
    core.leaf(1, "b")
    core.leaf(1, "c", "b")
    assert core.tick(5) == [
        EndNode.match(node=key(1, "a"), outcome="deadline"),
        EndNode.match(node=key(1, "b"), outcome="deadline"),
        EndNode.match(node=key(1, "c"), outcome="deadline"),
    ]


def test_a_busy_core_meets_deadlines_without_a_tick() -> None:
    core = Core().own().borrow()
    core.leaf(1, "a")
    core.leaf(2, "a", deadline=5)
    assert core.leaf(3, "a", "b", at=6) == [
        EndNode.match(node=key(2, "a"), outcome="deadline"),
        StartCall(key(3, "a"), "b"),
    ]


def test_a_result_that_arrives_late_but_before_the_tick_is_delivered() -> None:
    core = Core().own()
    core.leaf(1, "a", deadline=5)
    assert core.end_step(at=5.5) == [EndNode.match(node=key(1, "a"), outcome="done")]


def test_work_past_its_deadline_is_not_started_any_more() -> None:
    core = Core().own()
    core.leaf(1, "a")
    core.leaf(2, "a", deadline=5)
    core.leaf(3, "a")
    assert core.end_step(at=6) == [
        EndNode.match(node=key(1, "a"), outcome="done"),
        EndNode.match(node=key(2, "a"), outcome="deadline"),
        StartStep.match(admitted=(key(3, "a"),)),
    ]


def test_the_deadline_of_a_request_long_gone_does_nothing() -> None:
    core = Core().own()
    core.leaf(1, "a", deadline=5)
    core.end_step(at=1)
    core.leaf(1, "again", at=2)
    assert core.tick(5) == []
    assert core.end_step(at=6) == [EndNode.match(node=key(1, "again"), outcome="done")]


def test_deadlines_of_ended_requests_do_not_pile_up() -> None:
    core = Core().own()
    for request in range(2000):
        core.leaf(request, "a", deadline=1e9)
        core.end_step()
    assert len(core.state.deadlines) <= 65


def test_a_permit_is_held_until_the_call_of_an_expired_request_returns() -> None:
    core = Core().borrow(limit=1)
    core.leaf(1, "a", "b", deadline=5)
    core.leaf(2, "a", "b")
    assert core.tick(5) == [EndNode.match(node=key(1, "a"), outcome="deadline")]
    assert core.end_call(1, "a", at=7) == [StartCall(key(2, "a"), "b")]


def test_a_deadline_on_a_later_leaf_does_not_move_that_of_its_request() -> None:
    core = Core().own()
    core.open(1, deadline=5)
    node = spec("a")
    core.send(LeafArrived(RequestId(1), node, 0.0, deadline=50.0))
    assert core.tick(5) == [EndNode.match(node=key(1, "a"), outcome="deadline")]

"""The bound on live requests: who waits, who is refused, who never is."""

from __future__ import annotations

from core_harness import Core, key, spec

from rag_accel.scheduler.arrivals import engines_of_new
from rag_accel.scheduler.commands import EndNode, EndRequest, StartCall, StartStep
from rag_accel.scheduler.messages import LeafArrived, RequestArrived, RequestId


def full(max_requests: int = 1) -> Core:
    """Return a core whose only places are taken by calls on the borrowed engine ``b``."""
    core = Core(max_requests=max_requests).borrow().own()
    for index in range(max_requests):
        core.leaf(100 + index, "held", "b")
    return core


def test_a_request_past_the_bound_waits_and_starts_when_there_is_room() -> None:
    core = full()
    assert core.graph(1, spec("a")) == []
    assert core.end_call(100, "held") == [
        EndNode.match(outcome="done"),
        StartStep.match(admitted=(key(1, "a"),)),
    ]


def test_waiting_requests_are_admitted_oldest_first() -> None:
    core = full(max_requests=2)
    core.graph(1, spec("a", "b"))
    core.leaf(2, "a", "b")
    core.graph(3, spec("a", "b"))
    assert core.end_call(100, "held")[-1] == StartCall(key(1, "a"), "b")
    assert core.end_call(101, "held")[-1] == StartCall(key(2, "a"), "b")
    assert core.end_call(1, "a")[-1] == StartCall(key(3, "a"), "b")


def test_a_request_that_does_not_want_to_wait_is_refused() -> None:
    core = full()
    assert core.graph(1, spec("a"), on_full="raise") == [EndRequest.match(outcome="rejected")]
    assert core.leaf(2, "a", on_full="raise") == [
        EndNode.match(node=key(2, "a"), outcome="rejected")
    ]
    core.end_call(100, "held")
    assert core.state.is_empty()


def test_an_admitted_request_is_never_refused_later() -> None:
    core = full()
    assert core.leaf(100, "next", on_full="raise") == [
        StartStep.match(admitted=(key(100, "next"),))
    ]


def test_an_open_program_keeps_its_place_between_its_leaves() -> None:
    core = Core(max_requests=1).own()
    core.open(1)
    core.leaf(1, "a")
    core.end_step()
    assert core.graph(2, spec("a")) == []
    assert core.leaf(1, "b", on_full="raise") == [StartStep.match(admitted=(key(1, "b"),))]
    core.end_step()
    assert core.close_program(1) == [StartStep.match(admitted=(key(2, "a"),))]


def test_a_program_that_has_begun_keeps_its_place_until_it_is_opened() -> None:
    core = Core(max_requests=2).own()
    core.began(1)
    assert core.leaf(2, "a") == [StartStep.match(admitted=(key(2, "a"),))]
    core.open(3)
    assert core.leaf(3, "a") == []
    core.open(1, was_reported=True)
    core.leaf(1, "a")
    assert core.end_step()[-1] == StartStep.match(admitted=(key(1, "a"), key(3, "a")))
    core.end_step()
    core.close_program(1)
    core.close_program(3)
    assert core.state.is_empty()


def test_one_that_ends_unopened_makes_room() -> None:
    core = Core(max_requests=1).own()
    core.began(1)
    assert core.graph(2, spec("a")) == []
    assert core.ended(1) == [StartStep.match(admitted=(key(2, "a"),))]


def test_programs_that_began_at_the_same_moment_all_enter() -> None:
    core = Core(max_requests=2).own()
    core.began(1, 2, 3)
    for request in (1, 2, 3):
        core.open(request, was_reported=True)
    assert all(run.admitted for run in core.state.requests.values())
    assert len(core.state.requests) == 3


def test_a_program_opened_past_the_bound_lets_its_leaves_wait() -> None:
    core = full()
    core.open(1)
    assert core.leaf(1, "a") == []
    assert core.leaf(1, "b") == []
    assert core.end_call(100, "held")[-1] == StartStep.match(admitted=(key(1, "a"), key(1, "b")))


def test_a_leaf_that_does_not_want_to_wait_for_its_program_is_refused() -> None:
    core = full()
    core.open(1)
    assert core.leaf(1, "a", on_full="raise") == [
        EndNode.match(node=key(1, "a"), outcome="rejected")
    ]


def test_a_program_that_closes_while_it_waits_takes_no_place() -> None:
    core = full()
    core.open(1)
    core.close_program(1)
    core.end_call(100, "held")
    assert core.state.is_empty()


def test_a_program_that_closes_with_waiting_leaves_still_gets_them() -> None:
    core = full()
    core.open(1)
    core.leaf(1, "a")
    core.close_program(1)
    assert core.end_call(100, "held")[-1] == StartStep.match(admitted=(key(1, "a"),))


def test_a_waiting_request_can_be_cancelled() -> None:
    core = full()
    core.graph(1, spec("a"), spec("b", "e", "a"))
    core.leaf(2, "a")
    assert core.cancel_request(1) == [EndRequest.match(request=1, outcome="cancelled")]
    assert core.cancel_node(2, "a") == [EndNode.match(node=key(2, "a"), outcome="cancelled")]
    core.end_call(100, "held")
    assert core.state.is_empty()


def test_requests_that_are_lost_on_arrival_make_room_for_all_that_wait() -> None:
    core = Core(max_requests=1, step_timeout_s=10).own().borrow()
    core.leaf(1, "hangs")
    core.tick(10)
    core.leaf(2, "held", "b", at=10)
    core.leaf(3, "a", at=10)
    core.leaf(4, "a", at=10)
    core.leaf(5, "a", "b", at=10)
    assert core.end_call(2, "held", at=11) == [
        EndNode.match(node=key(2, "held"), outcome="done"),
        EndNode.match(node=key(3, "a"), outcome="lost"),
        EndNode.match(node=key(4, "a"), outcome="lost"),
        StartCall(key(5, "a"), "b"),
    ]


def test_a_waiting_request_follows_equal_work_only_once_it_is_admitted() -> None:
    core = full()
    core.leaf(100, "a", share="k")
    core.leaf(1, "a", share="k")
    core.end_step()
    assert core.end_call(100, "held")[-1] == StartStep.match(admitted=(key(1, "a"),))


def test_a_new_request_that_would_be_late_is_refused_and_told_when_to_come_again() -> None:
    core = full(2)
    node = spec("a")
    late = RequestArrived(RequestId(1), (node,), 0.0, None, "raise", retry_after_s=0.5)
    assert core.send(late, 0.0) == [
        EndRequest.match(request=1, outcome="rejected", retry_after_s=0.5)
    ]
    leaf = LeafArrived(RequestId(2), node, 0.0, None, "raise", retry_after_s=0.5)
    assert core.send(leaf, 0.0) == [
        EndNode.match(node=key(2, "a"), outcome="rejected", retry_after_s=0.5)
    ]
    assert RequestId(1) not in core.state.requests


def test_only_the_first_call_of_a_program_asks_for_its_admission() -> None:
    core = Core().own()
    first = LeafArrived(RequestId(1), spec("a"), 0.0, None, "raise")
    second = LeafArrived(RequestId(1), spec("b"), 0.0, None, "raise")
    core.open(1)
    assert engines_of_new(core.state, first) == ["e"]
    core.send(first, 0.0)
    assert engines_of_new(core.state, second) == []
    core.end_step()
    assert engines_of_new(core.state, second) == []
    graph = RequestArrived(RequestId(2), (spec("a"), spec("b", "e", "a")), 0.0, None, "raise")
    assert engines_of_new(core.state, graph) == ["e"]


def test_a_call_that_holds_up_a_loop_is_let_in_beyond_the_bound() -> None:
    core = full()
    assert core.leaf(1, "a", "b", at_once=True) == [StartCall(key(1, "a"), "b")]
    assert core.leaf(2, "a", "b") == []
    assert core.end_call(1, "a") == [EndNode.match(outcome="done")]  # there still is no room
    assert core.end_call(100, "held")[-1] == StartCall(key(2, "a"), "b")


def test_a_program_that_waits_is_let_in_by_a_call_that_holds_up_its_loop() -> None:
    core = full()
    core.open(1)
    core.leaf(1, "async", "b")
    assert core.leaf(1, "sync", "b", at_once=True) == [
        StartCall(key(1, "async"), "b"),
        StartCall(key(1, "sync"), "b"),
    ]
    assert not core.state.pending


def test_an_owned_engines_work_for_a_call_that_holds_up_a_loop_is_let_in() -> None:
    core = full()
    assert core.leaf(1, "a", at_once=True) == [StartStep.match(admitted=(key(1, "a"),))]


def test_a_call_that_holds_up_a_loop_is_let_in_by_a_full_engine() -> None:
    core = Core().borrow(limit=1)
    core.leaf(1, "a", "b")
    assert core.leaf(2, "a", "b", at_once=True) == [StartCall(key(2, "a"), "b")]
    assert core.leaf(3, "a", "b") == []
    assert core.end_call(1, "a") == [EndNode.match(outcome="done")]  # the other one counts, too
    assert core.end_call(2, "a")[-1] == StartCall(key(3, "a"), "b")


def test_a_call_that_holds_up_a_loop_is_refused_where_nobody_is_to_wait() -> None:
    core = full()
    assert core.leaf(1, "a", "b", on_full="raise", at_once=True) == [
        EndNode.match(outcome="rejected")
    ]


def test_a_call_whose_loop_is_found_held_up_is_let_in_beyond_the_bound() -> None:
    core = full()
    assert core.leaf(1, "a", "b") == []
    assert core.hold_up(1, "a") == [StartCall(key(1, "a"), "b")]
    assert core.hold_up(1, "a") == []
    assert core.end_call(1, "a") == [EndNode.match(outcome="done")]
    assert core.hold_up(1, "a") == []


def test_a_call_whose_loop_is_found_held_up_is_let_in_by_a_full_engine() -> None:
    core = Core().borrow(limit=1)
    core.leaf(1, "a", "b")
    assert core.leaf(2, "a", "b") == []
    assert core.leaf(3, "a", "b") == []
    assert core.hold_up(3, "a") == [StartCall(key(3, "a"), "b")]
    assert core.end_call(3, "a") == [EndNode.match(outcome="done")]
    assert core.end_call(1, "a")[-1] == StartCall(key(2, "a"), "b")

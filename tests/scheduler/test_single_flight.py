"""Equal work on one engine at one time runs once, and survives the end of whoever ran it."""

from __future__ import annotations

import pytest
from core_harness import Core, key, spec

from rag_accel.scheduler.commands import EndNode, EndRequest, StartCall, StartStep


def shared(*requests: int, busy: bool = False) -> Core:
    """Return a core in which each request asks for the same thing; the first one leads."""
    core = Core().own()
    if busy:
        core.leaf(99, "busy")
    for request in requests:
        core.leaf(request, "a", share="k")
    return core


def test_an_equal_node_follows_instead_of_running() -> None:
    core = shared(1, 2, 3)
    assert core.end_step() == [
        EndNode(key(1, "a"), "done"),
        EndNode(key(2, "a"), "done", leader=key(1, "a")),
        EndNode(key(3, "a"), "done", leader=key(1, "a")),
    ]
    assert core.state.is_empty()


def test_a_queued_node_can_be_followed_too() -> None:
    core = shared(1, 2, busy=True)
    assert core.end_step()[-1] == StartStep.match(admitted=(key(1, "a"),))
    assert core.end_step()[-1] == EndNode(key(2, "a"), "done", leader=key(1, "a"))


def test_nothing_is_shared_once_the_leader_has_ended() -> None:
    core = shared(1)
    core.end_step()
    assert core.leaf(2, "a", share="k") == [StartStep.match(admitted=(key(2, "a"),))]


def test_other_keys_and_other_engines_share_nothing() -> None:
    core = shared(1)
    core.own("f")
    assert core.leaf(2, "a", "f", share="k") == [StartStep.match(engine="f")]
    core.leaf(3, "a", share="other")
    assert core.end_step()[-1] == StartStep.match(admitted=(key(3, "a"),))


def test_nodes_without_a_key_are_never_shared() -> None:
    core = Core().own()
    core.leaf(1, "a")
    core.leaf(2, "a")
    core.leaf(3, "a")
    assert core.end_step()[-1] == StartStep.match(admitted=(key(2, "a"), key(3, "a")))


def test_a_follower_takes_over_from_a_failed_leader_with_the_others_behind_it() -> None:
    core = shared(1, 2, 3)
    assert core.end_step(error=[key(1, "a")]) == [
        EndNode(key(1, "a"), "failed"),
        StartStep.match(admitted=(key(2, "a"),)),
    ]
    assert core.end_step()[-1] == EndNode(key(3, "a"), "done", leader=key(2, "a"))


def test_a_follower_takes_over_from_a_leader_whose_step_raised() -> None:
    core = shared(1, 2)
    assert core.fail_step() == [
        EndNode(key(1, "a"), "failed"),
        StartStep.match(admitted=(key(2, "a"),)),
    ]


def test_followers_stay_behind_a_leader_that_is_retried() -> None:
    core = shared(1, 2, busy=True)
    core.leaf(3, "b")
    core.end_step()
    assert core.fail_step() == [StartStep.match(admitted=(key(1, "a"),))]
    assert core.end_step() == [
        EndNode(key(1, "a"), "done"),
        EndNode(key(2, "a"), "done", leader=key(1, "a")),
        StartStep.match(admitted=(key(3, "b"),)),
    ]


def test_the_key_is_free_again_after_a_retried_leader_has_failed() -> None:
    core = shared(1, busy=True)
    core.leaf(3, "b")
    core.end_step()
    core.fail_step()
    assert core.fail_step()[0] == EndNode(key(1, "a"), "failed")
    core.leaf(4, "a", share="k")
    assert core.end_step()[-1] == StartStep.match(admitted=(key(4, "a"),))


@pytest.mark.parametrize("busy", [False, True])
def test_a_follower_takes_over_from_a_cancelled_leader(busy: bool) -> None:
    core = shared(1, 2, 3, busy=busy)
    assert core.cancel_node(1, "a") == [EndNode(key(1, "a"), "cancelled")]
    assert core.end_step()[-1] == StartStep.match(admitted=(key(2, "a"),))
    assert core.end_step()[-1] == EndNode(key(3, "a"), "done", leader=key(2, "a"))
    assert core.state.is_empty()


def test_a_follower_takes_over_when_the_leaders_whole_request_is_cancelled() -> None:
    core = shared(1, 2)
    assert core.cancel_request(1) == [EndNode(key(1, "a"), "cancelled")]
    assert core.end_step() == [StartStep.match(admitted=(key(2, "a"),))]


def test_a_follower_takes_over_from_a_leader_past_its_deadline() -> None:
    core = Core().own()
    core.leaf(1, "a", share="k", deadline=5.0)
    core.leaf(2, "a", share="k")
    assert core.tick(5.0) == [EndNode(key(1, "a"), "deadline")]
    assert core.end_step(at=6.0) == [StartStep.match(admitted=(key(2, "a"),))]


def test_a_cancelled_follower_leaves_the_others_alone() -> None:
    core = shared(1, 2, 3)
    assert core.cancel_node(2, "a") == [EndNode(key(2, "a"), "cancelled")]
    assert core.end_step() == [
        EndNode(key(1, "a"), "done"),
        EndNode(key(3, "a"), "done", leader=key(1, "a")),
    ]


def test_a_follower_past_its_deadline_leaves_the_leader_alone() -> None:
    core = shared(1)
    core.leaf(2, "a", share="k", deadline=5.0)
    assert core.tick(5.0) == [EndNode(key(2, "a"), "deadline")]
    assert core.end_step(at=6.0) == [EndNode(key(1, "a"), "done")]


def test_a_follower_inside_the_leaders_own_request_ends_with_it() -> None:
    core = Core().own()
    core.graph(1, spec("a", share="k"), spec("b", share="k"))
    assert core.cancel_request(1) == [EndRequest.match(outcome="cancelled")]
    core.end_step()
    assert core.state.is_empty()


def test_a_shared_result_lets_go_what_waited_for_the_follower() -> None:
    core = Core().own().own("f")
    core.leaf(1, "a", share="k")
    core.graph(2, spec("b", share="k"), spec("c", "f", "b"))
    assert core.end_step() == [
        EndNode(key(1, "a"), "done"),
        EndNode(key(2, "b"), "done", leader=key(1, "a")),
        StartStep.match(engine="f", admitted=(key(2, "c"),)),
    ]


def test_followers_of_a_lost_engine_are_lost_one_by_one() -> None:
    core = Core(step_timeout_s=10).own()
    for request in (1, 2, 3):
        core.leaf(request, "a", share="k")
    assert core.tick(10) == [
        EndNode(key(1, "a"), "lost"),
        EndNode(key(2, "a"), "lost"),
        EndNode(key(3, "a"), "lost"),
    ]


def test_calls_of_a_borrowed_engine_are_shared_by_the_same_rules() -> None:
    core = Core().borrow()
    assert core.leaf(1, "a", "b", share="k") == [StartCall(key(1, "a"), "b")]
    assert core.leaf(2, "a", "b", share="k") == []
    assert core.leaf(3, "a", "b", share="k") == []
    assert core.end_call(1, "a", ok=False) == [
        EndNode(key(1, "a"), "failed"),
        StartCall(key(2, "a"), "b"),
    ]
    assert core.end_call(2, "a") == [
        EndNode(key(2, "a"), "done"),
        EndNode(key(3, "a"), "done", leader=key(2, "a")),
    ]

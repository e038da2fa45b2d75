"""A caller that is gone takes his own work along and nobody else's."""

from __future__ import annotations

from core_harness import Core, key, spec

from rag_accel.scheduler.commands import EndNode, EndRequest, StartCall, StartStep


def test_a_queued_leaf_never_starts() -> None:
    core = Core().own()
    core.leaf(1, "a")
    core.leaf(2, "a")
    assert core.cancel_node(2, "a") == [EndNode.match(node=key(2, "a"), outcome="cancelled")]
    assert core.end_step() == [EndNode.match(node=key(1, "a"), outcome="done")]


def test_a_leaf_running_in_a_batch_ends_at_once_and_its_neighbours_go_on() -> None:
    core = Core().own()
    core.leaf(9, "busy")
    core.leaf(1, "a")
    core.leaf(2, "a")
    core.end_step()
    assert core.cancel_node(1, "a") == [EndNode.match(node=key(1, "a"), outcome="cancelled")]
    assert core.end_step(final=[key(1, "a"), key(2, "a")]) == [
        EndNode.match(node=key(2, "a"), outcome="done")
    ]
    assert core.state.is_empty()


def test_cancelling_what_has_ended_or_never_was_does_nothing() -> None:
    core = Core().own()
    core.leaf(1, "a")
    core.end_step()
    assert core.cancel_node(1, "a") == []
    assert core.cancel_node(7, "x") == []
    assert core.cancel_request(1) == []
    assert core.state.is_empty()


def test_cancelling_twice_ends_once() -> None:
    core = Core().own()
    core.leaf(1, "a")
    assert len(core.cancel_node(1, "a")) == 1
    assert core.cancel_node(1, "a") == []
    assert core.cancel_request(1) == []


def test_a_cancelled_leaf_leaves_the_other_leaves_of_its_program_alone() -> None:
    core = Core().own()
    core.open(1)
    core.leaf(1, "a")
    core.leaf(1, "b")
    core.cancel_node(1, "a")
    assert core.end_step()[-1] == StartStep.match(admitted=(key(1, "b"),))


def test_a_cancelled_program_ends_each_of_its_leaves() -> None:
    core = Core().own()
    core.open(1)
    core.leaf(1, "a")
    core.leaf(1, "b")
    assert core.cancel_request(1) == [
        EndNode.match(node=key(1, "a"), outcome="cancelled"),
        EndNode.match(node=key(1, "b"), outcome="cancelled"),
    ]
    core.end_step()
    assert core.state.is_empty()


def test_an_idle_program_can_be_cancelled() -> None:
    core = Core().own()
    core.open(1)
    assert core.cancel_request(1) == []
    assert core.state.is_empty()


def test_cancelling_one_node_of_a_graph_cancels_the_graph() -> None:
    core = Core().own()
    core.graph(1, spec("a"), spec("b", "e", "a"))
    assert core.cancel_node(1, "b") == [
        EndNode.match(node=key(1, "b"), outcome="cancelled"),
        EndRequest.match(request=1, outcome="cancelled", node=key(1, "b")),
    ]


def test_a_cancelled_call_keeps_its_permit_until_it_returns() -> None:
    core = Core().borrow(limit=1)
    core.leaf(1, "a", "b")
    core.leaf(2, "a", "b")
    assert core.cancel_node(1, "a") == [EndNode.match(outcome="cancelled")]
    assert core.end_call(1, "a") == [StartCall(key(2, "a"), "b")]
    assert core.end_call(2, "a") == [EndNode.match(node=key(2, "a"), outcome="done")]
    assert core.state.is_empty()


def test_a_call_that_returns_twice_gives_one_permit_back() -> None:
    core = Core().borrow(limit=1)
    core.leaf(1, "a", "b")
    core.leaf(2, "a", "b")
    core.leaf(3, "a", "b")
    core.end_call(1, "a")
    assert core.end_call(1, "a") == []


def test_a_program_goes_on_after_one_of_its_leaves_failed() -> None:
    core = Core().own()
    core.open(1)
    core.leaf(1, "a")
    core.end_step(error=[key(1, "a")])
    assert core.leaf(1, "b") == [StartStep.match(admitted=(key(1, "b"),))]


def test_closing_a_program_lets_its_running_leaves_end_by_themselves() -> None:
    core = Core().own()
    core.open(1)
    core.leaf(1, "a")
    assert core.close_program(1) == []
    assert core.end_step() == [EndNode.match(node=key(1, "a"), outcome="done")]
    assert core.state.is_empty()


def test_closing_an_unknown_program_does_nothing() -> None:
    assert Core().close_program(5) == []

"""Whole requests: joins, fan-out, growth, and failure in one branch."""

from __future__ import annotations

from core_harness import Core, key, spec

from rag_accel.scheduler.commands import CancelWork, EndNode, EndRequest, StartCall, StartStep


def test_a_chain_runs_one_after_the_other_and_ends() -> None:
    core = Core().own("x").own("y")
    assert core.graph(1, spec("a", "x"), spec("b", "y", "a")) == [
        StartStep.match(engine="x", admitted=(key(1, "a"),))
    ]
    assert core.end_step("x") == [
        EndNode.match(node=key(1, "a"), outcome="done"),
        StartStep.match(engine="y", admitted=(key(1, "b"),)),
    ]
    assert core.end_step("y") == [
        EndNode.match(node=key(1, "b"), outcome="done"),
        EndRequest(1, "done"),
    ]
    assert core.state.is_empty()


def test_nodes_may_be_listed_in_any_order() -> None:
    core = Core().own()
    core.graph(1, spec("c", "e", "b"), spec("b", "e", "a"), spec("a"))
    assert core.end_step()[-1] == StartStep.match(admitted=(key(1, "b"),))
    assert core.end_step()[-1] == StartStep.match(admitted=(key(1, "c"),))


def test_a_fan_out_becomes_one_batch() -> None:
    core = Core().own()
    core.graph(1, spec("a"), *(spec(name, "e", "a") for name in "bcd"))
    assert core.end_step()[-1] == StartStep.match(admitted=(key(1, "b"), key(1, "c"), key(1, "d")))


def test_a_join_starts_once_all_its_branches_have_ended() -> None:
    core = Core().borrow().own()
    core.graph(1, spec("a", "b"), spec("b", "b"), spec("join", "e", "a", "b"))
    assert core.end_call(1, "b") == [EndNode.match(node=key(1, "b"), outcome="done")]
    assert core.end_call(1, "a")[-1] == StartStep.match(admitted=(key(1, "join"),))


def test_waiting_twice_for_the_same_node_is_waiting_once() -> None:
    core = Core().own()
    core.graph(1, spec("a"), spec("b", "e", "a", "a"))
    assert core.end_step()[-1] == StartStep.match(admitted=(key(1, "b"),))


def test_a_failure_in_one_branch_ends_the_request_and_drops_the_other_branches() -> None:
    core = Core().own("x").own("s", stepped=True).borrow()
    core.graph(
        1,
        spec("bad", "x"),
        spec("called", "b"),
        spec("held", "s"),
        spec("queued", "x", depth=0),
        spec("later", "x", "called"),
    )
    assert core.end_step("x", error=[key(1, "bad")]) == [
        EndNode.match(node=key(1, "bad"), outcome="failed"),
        CancelWork.match(engine="s", nodes=(key(1, "held"),)),
        EndRequest(1, "failed", key(1, "bad")),
    ]
    assert core.end_call(1, "called") == []
    assert core.end_step("s", final=[]) == []
    assert core.state.is_empty()


def test_a_failure_in_one_request_does_not_touch_another_in_its_batch() -> None:
    core = Core().own()
    core.leaf(9, "busy")
    core.graph(1, spec("a"), spec("b", "e", "a"))
    core.graph(2, spec("a"), spec("b", "e", "a"))
    core.end_step()
    assert core.end_step(error=[key(1, "a")], final=[key(2, "a")]) == [
        EndNode.match(node=key(1, "a"), outcome="failed"),
        EndRequest.match(request=1, outcome="failed"),
        EndNode.match(node=key(2, "a"), outcome="done"),
        StartStep.match(admitted=(key(2, "b"),)),
    ]


def test_a_taken_branch_grows_the_request() -> None:
    core = Core().borrow().own()
    core.graph(1, spec("choose", "b"))
    commands = core.end_call(1, "choose", "b", spec("x", "e", "choose"), spec("y", "e", "x"))
    assert commands == [
        EndNode.match(node=key(1, "choose"), outcome="done"),
        StartStep.match(admitted=(key(1, "x"),)),
    ]
    assert core.end_step()[-1] == StartStep.match(admitted=(key(1, "y"),))
    assert core.end_step()[-1] == EndRequest(1, "done")


def test_growth_may_wait_for_nodes_that_ended_long_ago_or_still_run() -> None:
    core = Core().borrow()
    core.graph(1, spec("old", "b"), spec("runs", "b"), spec("choose", "b"))
    core.end_call(1, "old")
    commands = core.end_call(
        1, "choose", "b", spec("x", "b", "old"), spec("y", "b", "runs", "choose")
    )
    assert commands[1:] == [StartCall(key(1, "x"), "b")]
    assert core.end_call(1, "runs")[1:] == [StartCall(key(1, "y"), "b")]


def test_a_failed_call_appends_nothing() -> None:
    core = Core().borrow()
    core.graph(1, spec("choose", "b"))
    assert core.end_call(1, "choose", "b", spec("x", "b"), ok=False) == [
        EndNode.match(outcome="failed"),
        EndRequest.match(outcome="failed"),
    ]


def test_a_call_that_returns_after_its_request_ended_appends_nothing() -> None:
    core = Core().borrow()
    core.graph(1, spec("choose", "b"))
    core.cancel_request(1)
    assert core.end_call(1, "choose", "b", spec("x", "b")) == []
    assert core.state.is_empty()


def test_a_call_intercepted_inside_a_graph_ends_by_itself() -> None:
    core = Core().borrow().own()
    core.graph(1, spec("function", "b"))
    assert core.leaf(1, "inner") == [StartStep.match(admitted=(key(1, "inner"),))]
    assert core.end_step(error=[key(1, "inner")]) == [
        EndNode.match(node=key(1, "inner"), outcome="failed")
    ]
    assert core.end_call(1, "function") == [
        EndNode.match(node=key(1, "function"), outcome="done"),
        EndRequest(1, "done"),
    ]


def test_a_graph_stays_until_a_call_intercepted_inside_it_has_ended() -> None:
    core = Core().borrow().own()
    core.graph(1, spec("function", "b"))
    core.leaf(1, "inner")
    assert core.end_call(1, "function") == [EndNode.match(outcome="done")]
    assert core.end_step() == [
        EndNode.match(node=key(1, "inner"), outcome="done"),
        EndRequest(1, "done"),
    ]


def test_a_call_intercepted_inside_a_graph_ends_with_it() -> None:
    core = Core().borrow()
    core.graph(1, spec("function", "b"))
    core.leaf(1, "inner", "b")
    assert core.cancel_request(1) == [
        EndNode.match(node=key(1, "inner"), outcome="cancelled"),
        EndRequest.match(request=1, outcome="cancelled"),
    ]

"""Closing ends everything that lives, and takes nothing in afterwards."""

from __future__ import annotations

from core_harness import Core, key, spec

from rag_accel.scheduler.commands import CancelWork, EndNode, EndRequest


def crowded() -> Core:
    """Return a core with something in every state a node can be in."""
    core = Core(max_requests=6, step_timeout_s=10).own().own("s", stepped=True).borrow(limit=1)
    core.leaf(1, "running", share="k")
    core.leaf(2, "following", share="k")
    core.graph(3, spec("queued"), spec("waiting", "e", "queued"))
    core.leaf(4, "held", "s")
    core.leaf(5, "called", "b")
    core.leaf(6, "held back", "b")
    core.leaf(7, "pending")
    core.graph(8, spec("pending"))
    return core


def test_closing_ends_everything_exactly_once() -> None:
    assert crowded().close() == [
        EndNode.match(node=key(1, "running"), outcome="closed"),
        EndNode.match(node=key(2, "following"), outcome="closed"),
        EndRequest.match(request=3, outcome="closed"),
        CancelWork.match(engine="s", nodes=(key(4, "held"),)),
        EndNode.match(node=key(4, "held"), outcome="closed"),
        EndNode.match(node=key(5, "called"), outcome="closed"),
        EndNode.match(node=key(6, "held back"), outcome="closed"),
        EndNode.match(node=key(7, "pending"), outcome="closed"),
        EndRequest.match(request=8, outcome="closed"),
    ]


def test_what_still_runs_may_come_back_after_closing_and_leaves_nothing_behind() -> None:
    core = crowded()
    core.close()
    assert core.end_step(final=[key(1, "running")]) == []
    assert core.end_step("s", final=[key(4, "held")]) == []
    assert core.end_call(5, "called") == []
    assert core.state.is_empty()


def test_nothing_is_taken_in_after_closing() -> None:
    core = Core().own()
    core.close()
    assert core.leaf(1, "a") == [EndNode.match(node=key(1, "a"), outcome="closed")]
    assert core.graph(2, spec("a")) == [EndRequest.match(request=2, outcome="closed")]
    assert core.open(3) == []
    assert core.state.is_empty()


def test_closing_twice_ends_nothing_twice() -> None:
    core = crowded()
    core.close()
    assert core.close() == []


def test_a_step_that_hangs_while_closing_is_given_up_quietly() -> None:
    core = crowded()
    core.close()
    assert core.tick(10) == []
    assert core.state.wake_at is None

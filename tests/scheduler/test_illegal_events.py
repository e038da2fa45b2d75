"""Events that contradict the state raise, say why, and change nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from core_harness import Core, key, spec

from rag_accel.errors import InvalidTransitionError
from rag_accel.scheduler.messages import (
    CallEnded,
    EngineName,
    LeafArrived,
    RequestId,
    StepEnded,
    StepFailed,
    StepId,
)


def living() -> Core:
    """Return a core with an engine in a step, a graph in a call, and an open program."""
    core = Core().own().borrow()
    core.leaf(1, "a")
    core.graph(2, spec("call", "b"))
    core.open(3)
    return core


ILLEGAL: dict[str, tuple[str, Callable[[Core], object]]] = {
    "a step ends that does not run": (
        "step 99 while 1 runs",
        lambda core: core.send(StepEnded(EngineName("e"), StepId(99), (), 0.1)),
    ),
    "a step fails that does not run": (
        "step 99 while 1 runs",
        lambda core: core.send(StepFailed(EngineName("e"), StepId(99), 0.1)),
    ),
    "a step of an unknown engine ends": (
        "engine that has not joined",
        lambda core: core.send(StepEnded(EngineName("x"), StepId(1), (), 0.1)),
    ),
    "a call of an unknown engine ends": (
        "engine that has not joined",
        lambda core: core.send(CallEnded(key(2, "call"), EngineName("x"), True)),
    ),
    "a leaf names an unknown engine": (
        "engine that has not joined",
        lambda core: core.leaf(5, "a", "x"),
    ),
    "a graph names an unknown engine": (
        "engine that has not joined",
        lambda core: core.graph(5, spec("a", "x")),
    ),
    "growth names an unknown engine": (
        "engine that has not joined",
        lambda core: core.end_call(2, "call", "b", spec("z", "x")),
    ),
    "a name is used twice in a graph": (
        "used twice",
        lambda core: core.graph(5, spec("a"), spec("a")),
    ),
    "a leaf has the name of a living one": ("used twice", lambda core: core.leaf(1, "a")),
    "growth has the name of an earlier node": (
        "used twice",
        lambda core: core.end_call(2, "call", "b", spec("call")),
    ),
    "a node waits for one that does not exist": (
        "does not exist",
        lambda core: core.graph(5, spec("a", "e", "ghost")),
    ),
    "a node waits for itself": (
        "wait for each other",
        lambda core: core.graph(5, spec("a", "e", "a")),
    ),
    "nodes wait for each other": (
        "b, c",
        lambda core: core.graph(5, spec("a"), spec("b", "e", "c"), spec("c", "e", "b", "a")),
    ),
    "a request arrives twice": ("arrived twice", lambda core: core.graph(2, spec("a"))),
    "a program is opened twice": ("arrived twice", lambda core: core.open(3)),
    "an engine joins twice": ("joined twice", lambda core: core.own("e")),
    "an owned engine takes no work": ("takes no work", lambda core: core.own("x", max_batch=0)),
    "a borrowed engine takes no work": ("takes no work", lambda core: core.borrow("x", limit=0)),
    "an intercepted call waits for another": (
        "cannot wait",
        lambda core: core.send(LeafArrived(RequestId(3), spec("z", "e", "a"), 0.0)),
    ),
}


@pytest.mark.parametrize("case", ILLEGAL)
def test_it_raises_and_everything_else_goes_on(case: str) -> None:
    found, act = ILLEGAL[case]
    core = living()
    with pytest.raises(InvalidTransitionError, match=found):
        act(core)
    core.tick(0.0)
    assert [c.outcome for c in core.end_step() if hasattr(c, "outcome")] == ["done"]
    assert [c.outcome for c in core.end_call(2, "call") if hasattr(c, "outcome")] == [
        "done",
        "done",
    ]
    core.close_program(3)
    assert core.state.is_empty()


def test_an_intercepted_program_does_not_grow_by_appending() -> None:
    core = Core().borrow()
    core.open(1)
    core.leaf(1, "a", "b")
    with pytest.raises(InvalidTransitionError, match="only a graph grows"):
        core.end_call(1, "a", "b", spec("z", "b"))


def test_a_name_cannot_be_used_again_while_its_engine_still_works_on_the_first() -> None:
    core = Core().borrow()
    core.open(1)
    core.leaf(1, "a", "b")
    core.cancel_node(1, "a")
    with pytest.raises(InvalidTransitionError, match="used twice"):
        core.leaf(1, "a", "b")


def test_a_move_after_the_end_is_told_with_the_nodes_story() -> None:
    core = Core().own()
    core.graph(1, spec("a"), spec("b", "e", "a"))
    node = core.state.requests[RequestId(1)].nodes["a"]
    core.end_step()
    with pytest.raises(InvalidTransitionError) as caught:
        core.state.move(node, "running", "by mistake")
    assert "ended -> running (by mistake)" in str(caught.value)
    assert "None -> queued (ready)" in str(caught.value)
    assert "running -> ended (done)" in str(caught.value)


def test_a_story_holds_only_the_moves_of_its_node() -> None:
    core = Core().own()
    core.leaf(1, "a")
    core.leaf(2, "b")
    assert core.state.story(key(2, "b")).count("\n") == 0
    assert "None -> queued" in core.state.story(key(2, "b"))

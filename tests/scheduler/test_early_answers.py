"""Early leaves join steps of a request that is alone, and end when it is not, unless asked for."""

from __future__ import annotations

from dataclasses import replace

from core_harness import Core, key, spec

from rag_accel.scheduler.commands import CancelWork, Command, EndNode, StartStep
from rag_accel.scheduler.messages import EarlyAsked, EngineName, LeafArrived, Outcome, RequestId

LLM = {"stepped": True, "interruptible": True, "ends_in_time": True, "shares_cores": True}


def ahead(core: Core, name: str, request: int = 1, at: float = 0.0) -> list[Command]:
    """Begin a call that a program will likely make."""
    return core.send(LeafArrived(RequestId(request), replace(spec(name), early=True), at), at)


def ended(name: str, outcome: Outcome) -> EndNode:
    return EndNode(key(1, name), outcome)


def alone(**engine: object) -> Core:
    """Return a core with one program, which has a call."""
    core = Core().own(**{**LLM, **engine})  # type: ignore[arg-type]
    core.open(1)
    core.leaf(1, "a")
    return core


def test_it_joins_the_steps_of_its_request() -> None:
    core = alone()
    ahead(core, "b", at=0.01)
    (start,) = core.end_step(at=0.02, silent=[])
    assert StartStep.match(admitted=(key(1, "b"),), is_early=False) == start
    assert set(core.engine().running) == {key(1, "a"), key(1, "b")}


def test_another_request_ends_it() -> None:
    core = alone()
    ahead(core, "b")
    core.end_step(at=0.01, silent=[])
    commands = core.leaf(2, "x", at=0.02)
    assert CancelWork(EngineName("e"), (key(1, "b"),)) in commands
    assert ended("b", "cancelled") in commands
    assert key(1, "a") in core.engine().running


def test_once_asked_for_it_is_as_any_other() -> None:
    core = alone()
    ahead(core, "b")
    core.end_step(at=0.01, silent=[])
    core.send(EarlyAsked(key(1, "b"), EngineName("e")), 0.02)
    core.leaf(2, "x", at=0.03)
    assert key(1, "b") in core.engine().running
    assert ended("b", "done") in core.end_step(at=0.04, final=[key(1, "b")])


def test_in_company_it_is_not_begun() -> None:
    core = alone()
    core.open(2)
    assert ahead(core, "b") == [ended("b", "cancelled")]


def test_a_request_that_is_over_begins_none() -> None:
    core = Core().own(**LLM)
    assert ahead(core, "b", request=7) == [EndNode(key(7, "b"), "cancelled")]
    assert core.state.is_empty()


def test_a_graph_begins_none() -> None:
    core = Core().own(**LLM)
    core.graph(1, spec("a"))
    assert ahead(core, "b") == [ended("b", "cancelled")]


def test_it_ends_with_its_program() -> None:
    core = alone()
    ahead(core, "b")
    core.end_step(at=0.01, silent=[])
    commands = core.close_program(1, at=0.02)
    assert ended("b", "cancelled") in commands
    assert ended("a", "done") in core.end_step(at=0.03, final=[key(1, "a")])
    assert core.state.is_empty()


def test_what_ended_before_it_is_asked_for_stays_ended() -> None:
    core = alone()
    ahead(core, "b")
    core.end_step(at=0.01, silent=[])
    core.end_step(at=0.02, final=[key(1, "b")])
    assert core.send(EarlyAsked(key(1, "b"), EngineName("e")), 0.03) == []


def test_no_gap_is_learned_from_it() -> None:
    core = Core().own(**LLM)
    core.open(1, program="p")
    ahead(core, "b", at=0.5)
    assert core.state.programs == {}


def test_it_is_a_leaf_of_its_program_once_it_is_asked_for() -> None:
    core = alone()
    ahead(core, "b")
    assert len(core.state.requests[RequestId(1)].places) == 1
    core.send(EarlyAsked(key(1, "b"), EngineName("e")), 0.01)
    assert len(core.state.requests[RequestId(1)].places) == 2

"""Leaves with stakes begin where they are expected to save time, and end when they are taken."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_harness import Core, key, spec

from rag_accel.scheduler.commands import CancelWork, Command, EndNode, EndRequest, StartStep
from rag_accel.scheduler.messages import (
    EngineName,
    LeafArrived,
    RequestId,
    Stakes,
)
from rag_accel.scheduler.runs import NodeRun
from rag_accel.scheduler.speculation import gain_s
from rag_accel.scheduler.state import EngineState

LLM = {"stepped": True, "max_threads": 0}
SURE = Stakes(1.0, 0.1)


def speculating(**engine: object) -> Core:
    """Return a core with a graph that searches, and whose answer waits for that."""
    core = Core().own("search", max_threads=2)
    core.own(**{**LLM, **engine})  # type: ignore[arg-type]
    core.graph(1, spec("find", "search"), spec("answer", "e", "find"))
    return core


def begin(core: Core, stakes: Stakes = SURE, at: float = 0.01) -> list[Command]:
    node = replace(spec("ahead"), stakes=stakes)
    return core.send(LeafArrived(RequestId(1), node, at), at)


REFUSED = EndNode(key(1, "ahead"), "cancelled")


def test_it_begins_while_its_search_runs() -> None:
    core = speculating()
    (start,) = begin(core)
    assert StartStep.match(admitted=(key(1, "ahead"),)) == start


def test_it_goes_on_as_the_primitive_that_takes_it() -> None:
    core = speculating()
    begin(core)
    core.end_step(engine="search", at=0.02, final=[key(1, "find")])
    core.end_step(at=0.03, silent=[])
    commands = core.end_step(at=0.04, taken=[key(1, "ahead")])
    assert EndNode(key(1, "ahead"), "done") in commands
    assert set(core.engine().running) == {key(1, "answer")}
    commands = core.end_step(at=0.05, final=[key(1, "answer")])
    assert EndRequest(RequestId(1), "done") in commands
    assert core.state.is_empty()


def test_a_dropped_one_leaves_its_request_as_it_was() -> None:
    core = speculating()
    begin(core)
    commands = core.cancel_node(1, "ahead", at=0.02)
    assert CancelWork(EngineName("e"), (key(1, "ahead"),)) in commands
    core.end_step(engine="search", at=0.03, final=[key(1, "find")])
    core.end_step(at=0.04, silent=[])
    assert set(core.engine().running) == {key(1, "answer")}


def test_it_ends_with_its_request() -> None:
    core = speculating()
    begin(core)
    commands = core.cancel_request(1, at=0.02)
    assert REFUSED in commands
    assert CancelWork(EngineName("e"), (key(1, "ahead"),)) in commands


@pytest.mark.parametrize(
    ("engine", "stakes"),
    [
        ({}, Stakes(0.0, 0.1)),
        ({"max_threads": 2}, SURE),  # on the cores that the search computes on
        ({"stepped": False}, SURE),
        ({}, Stakes(1.0, 0.0001)),
    ],
)
def test_where_it_saves_no_time_it_does_not_begin(
    engine: dict[str, object], stakes: Stakes
) -> None:
    assert begin(speculating(**engine), stakes) == [REFUSED]


def test_a_full_engine_begins_none() -> None:
    core = speculating(max_batch=1)
    core.leaf(2, "other", at=0.005)
    assert begin(core) == [REFUSED]


def test_a_request_that_is_over_begins_none() -> None:
    core = Core().own(**LLM)  # type: ignore[arg-type]
    assert begin(core) == [REFUSED]


@pytest.mark.parametrize(
    ("chance", "neighbours", "step_s", "gain"),
    [
        (1.0, 0, 0.0, 0.1),
        (0.5, 0, 0.0, 0.05),
        (0.5, 0, 0.04, 0.04),  # half of a step is waited for, half of the time
        (0.5, 32, 0.0, 0.025),  # half of 0.1 s, half of the engine's places
        (0.0, 64, 0.0, -0.1),
    ],
)
def test_the_gain_is_that_of_the_formula(
    chance: float, neighbours: int, step_s: float, gain: float
) -> None:
    engine = EngineState(EngineName("e"), True, max_batch=64, step_mean_s=step_s)
    for place in range(neighbours):
        node = key(2, str(place))
        engine.running[node] = NodeRun(node, spec(str(place)), 0.0)
    assert gain_s(engine, Stakes(chance, 0.1)) == pytest.approx(gain)

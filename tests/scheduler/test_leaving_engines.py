"""An engine that has left goes when it has nothing to do, and its name means nothing then."""

from __future__ import annotations

import pytest
from core_harness import Core, key, spec

from rag_accel.errors import InvalidTransitionError
from rag_accel.scheduler.commands import DropEngine, EndNode, StartStep
from rag_accel.scheduler.messages import EngineLeft, EngineName, RequestCancelled, RequestId

LEFT = EngineLeft(EngineName("e"))
DROP = DropEngine.match(engine="e")


def test_an_idle_engine_goes_at_once() -> None:
    core = Core().own()
    assert core.send(LEFT) == [DROP]
    assert not core.state.engines
    assert not core.state.owned


def test_a_busy_engine_finishes_what_it_has() -> None:
    core = Core().own(max_batch=1)
    core.leaf(1, "a")
    core.leaf(2, "a")
    assert core.send(LEFT) == []
    assert core.end_step() == [
        EndNode.match(node=key(1, "a"), outcome="done"),
        StartStep.match(admitted=(key(2, "a"),)),
    ]
    assert core.end_step() == [EndNode.match(node=key(2, "a"), outcome="done"), DROP]


def test_an_engine_that_hangs_goes_when_its_step_comes_back() -> None:
    core = Core(step_timeout_s=1.0).own()
    core.leaf(1, "a")
    core.send(LEFT)
    assert core.tick(2.0) == [EndNode.match(node=key(1, "a"), outcome="lost")]
    assert core.end_step(at=3.0, final=[]) == [DROP]


def test_who_has_gone_already_may_be_named() -> None:
    core = Core()
    assert core.send(LEFT) == []


def test_work_for_an_engine_that_has_gone_is_refused() -> None:
    core = Core().own()
    core.send(LEFT)
    with pytest.raises(InvalidTransitionError, match="has not joined"):
        core.leaf(1, "a")


def test_what_was_learned_about_it_is_forgotten() -> None:
    core = Core().own().own("f")
    for round_ in range(3):
        core.open(round_, at=round_)
        core.leaf(round_, "a", at=round_ + 0.1)
        core.end_step(at=round_ + 0.2)
        core.leaf(round_, "b", "f", at=round_ + 0.3)
        core.end_step("f", at=round_ + 0.4)
        core.close_program(round_)
    assert len(core.state.programs["p"].gaps) == 2
    core.send(LEFT)
    times = core.state.programs["p"]
    assert not times.gaps
    assert [place.engine for place in times.places] == ["f"]


def test_an_engine_stays_while_a_live_request_still_wants_it() -> None:
    core = Core().own().own("f")
    core.graph(1, spec("a", "f"), spec("b", "e", "a"))
    assert core.send(LEFT) == []
    assert core.end_step("f")[-1] == StartStep.match(admitted=(key(1, "b"),))
    assert core.end_step()[-1] == DROP


def test_an_engine_goes_with_the_last_request_that_wanted_it() -> None:
    core = Core(max_requests=1).own().own("f")
    core.graph(1, spec("a", "f"), spec("b", "e", "a"))
    core.graph(2, spec("a", "e"))
    core.graph(3, spec("a", "e"), on_full="raise")
    core.send(LEFT)
    core.send(RequestCancelled(RequestId(2)))
    assert DROP in core.send(RequestCancelled(RequestId(1)))

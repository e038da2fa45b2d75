"""A renewed state has the same engines, no work, and the permits of calls that still run."""

from __future__ import annotations

from dataclasses import fields

from core_harness import Core, key

from rag_accel.scheduler.commands import DropEngine, StartCall, StartStep
from rag_accel.scheduler.messages import EngineLeft, EngineName, OwnedEngineAdded
from rag_accel.scheduler.state import EngineState


def _busy() -> Core:
    core = Core()
    core.own("e", max_batch=7, stepped=True)
    core.borrow("b", limit=1)
    core.leaf(1, "a", "e")
    core.leaf(2, "a", "e")
    core.leaf(3, "a", "b")
    core.leaf(4, "a", "b")
    return core


def test_nothing_lives_in_it_and_its_engines_are_the_same() -> None:
    core = _busy()
    before = core.engine("e")
    core.state = core.state.renewed({})
    core.tick(1.0)
    assert core.state.is_empty()
    after = core.engine("e")
    assert (after.max_batch, after.stepped, after.step) == (before.max_batch, True, None)


def test_all_that_an_engine_was_added_with_stays() -> None:
    added = {each.name for each in fields(OwnedEngineAdded)} & {
        each.name for each in fields(EngineState)
    }
    engine = EngineState(EngineName("e"), True)
    for number, name in enumerate(sorted(added), start=2):
        old = getattr(engine, name)
        setattr(engine, name, not old if isinstance(old, bool) else type(old)(number))
    renewed = engine.renewed()
    assert {name: getattr(renewed, name) for name in added} == {
        name: getattr(engine, name) for name in added
    }
    assert "shares_cores" in added


def test_its_steps_are_none_that_was_there_before() -> None:
    core = _busy()
    steps = core.state.steps
    core.state = core.state.renewed({})
    (start,) = core.leaf(5, "a", "e")
    assert isinstance(start, StartStep)
    assert start.step > steps


def test_a_call_that_still_runs_keeps_its_permit_until_it_ends() -> None:
    core = _busy()
    core.state = core.state.renewed({key(3, "a"): EngineName("b")})
    assert core.leaf(5, "a", "b") == []
    assert core.end_call(3, "a", "b") == [StartCall(key(5, "a"), EngineName("b"))]


def test_an_engine_that_was_leaving_leaves() -> None:
    core = _busy()
    core.send(EngineLeft(EngineName("e")))
    core.state = core.state.renewed({})
    assert core.tick(1.0) == [DropEngine(EngineName("e"))]

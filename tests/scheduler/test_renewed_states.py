"""A renewed state has the same engines, no work, and the permits of calls that still run."""

from __future__ import annotations

from dataclasses import fields

from core_harness import Core

from rag_accel.scheduler.commands import StartStep
from rag_accel.scheduler.messages import EngineName, OwnedEngineAdded
from rag_accel.scheduler.state import EngineState


def _busy() -> Core:
    core = Core().own("e", max_batch=7, stepped=True).borrow("b", limit=1)
    core.leaf(1, "a", "e")
    core.leaf(2, "a", "e")
    core.leaf(3, "a", "b")
    core.leaf(4, "a", "b")
    return core


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

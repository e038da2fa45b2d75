"""How many threads a step may use: all cores, or a share beside an engine that needs them long."""

from __future__ import annotations

import pytest
from core_harness import Core, spec
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.scheduler.commands import Command, StartStep


def threads(commands: list[Command]) -> int:
    """Return the threads of the one step among these commands."""
    (step,) = [command for command in commands if isinstance(command, StartStep)]
    return step.threads


def test_an_engine_that_is_alone_gets_all_cores() -> None:
    core = Core(cores=8).own(max_threads=16)
    assert threads(core.leaf(1, "a")) == 8


def test_an_engine_gets_no_more_than_it_can_use() -> None:
    core = Core(cores=8).own(max_threads=2)
    assert threads(core.leaf(1, "a")) == 2


@pytest.mark.parametrize("max_threads", [0, -1])
def test_an_engine_that_computes_elsewhere_gets_one_and_takes_none_away(max_threads: int) -> None:
    core = Core(cores=4).own("remote", max_threads=max_threads).own(max_threads=4)
    assert threads(core.leaf(1, "a", "remote")) == 1
    assert threads(core.leaf(2, "a")) == 4


def test_each_step_may_use_all_cores_beside_another() -> None:
    core = Core(cores=4).own("x", max_threads=4).own("y", max_threads=3)
    steps = core.graph(1, spec("a", "x"), spec("b", "y"))
    assert [step.threads for step in steps if isinstance(step, StartStep)] == [4, 3]


@pytest.mark.parametrize("has_work", [False, True])
def test_cores_are_shared_only_while_an_engine_that_shares_them_has_work(has_work: bool) -> None:
    core = Core(cores=6).own("llm", max_threads=6, shares_cores=True).own("x", max_threads=6)
    core.own("y", max_threads=6)
    specs = [spec("b", "x"), spec("c", "y")]
    steps = core.graph(1, *([spec("a", "llm")] if has_work else []), *specs)
    granted = [step.threads for step in steps if isinstance(step, StartStep)]
    assert granted == ([2, 2, 2] if has_work else [6, 6])


def test_an_engine_that_shares_cores_and_computes_elsewhere_makes_none_share() -> None:
    core = Core(cores=4).own("remote", max_threads=0, shares_cores=True).own("x", max_threads=4)
    core.own("y", max_threads=4)
    steps = core.graph(1, spec("a", "remote"), spec("b", "x"), spec("c", "y"))
    assert [step.threads for step in steps if isinstance(step, StartStep)] == [1, 4, 4]


def test_two_engines_with_work_share_equally() -> None:
    core = Core(cores=4).own("x", max_threads=4, shares_cores=True).own("y", max_threads=4)
    core.leaf(1, "a", "x")
    assert threads(core.leaf(2, "a", "y")) == 1
    core.leaf(3, "a", "x")
    assert threads(core.end_step("x")) == 2
    core.leaf(4, "a", "y")
    assert threads(core.end_step("y")) == 2


def test_work_that_arrives_for_two_engines_at_once_is_shared_for() -> None:
    core = Core(cores=4).own("x", max_threads=4, shares_cores=True).own("y", max_threads=4)
    steps = core.graph(1, spec("a", "x"), spec("b", "y"))
    assert [step.threads for step in steps if isinstance(step, StartStep)] == [2, 2]


def test_an_engine_that_only_rests_claims_nothing() -> None:
    core = Core(cores=4).own("x", max_threads=4, shares_cores=True).own("y", max_threads=4)
    core.leaf(1, "a", "x")
    core.end_step("x")
    assert threads(core.leaf(2, "a", "y")) == 4


def test_a_runnable_step_is_never_held_back_for_want_of_a_core() -> None:
    core = Core(cores=1)
    for name in "xyz":
        core.own(name, max_threads=4, shares_cores=True)
    assert [threads(core.leaf(1, name, name)) for name in "xyz"] == [1, 1, 1]


def test_borrowed_engines_hold_no_cores() -> None:
    core = Core(cores=4).borrow().own(max_threads=4, shares_cores=True)
    core.leaf(1, "a", "b")
    assert threads(core.leaf(2, "a")) == 4


def test_threads_are_given_back_when_a_step_ends_or_raises() -> None:
    core = Core(cores=4).own("x", max_threads=4, shares_cores=True).own("y", max_threads=4)
    core.leaf(1, "a", "x")
    core.fail_step("x")
    assert threads(core.leaf(2, "a", "y")) == 4


def test_a_hung_step_still_holds_its_threads() -> None:
    core = Core(cores=4, step_timeout_s=10).own("x", max_threads=3, shares_cores=True)
    core.own("y", max_threads=4)
    core.leaf(1, "a", "x")
    core.tick(10)
    assert threads(core.leaf(2, "a", "y", at=11)) == 1


@given(
    st.integers(1, 32),
    st.lists(st.integers(0, 40), min_size=1, max_size=6),
    st.lists(st.integers(0, 5), max_size=40),
)
def test_shares_are_at_least_one_and_never_exceed_the_cores_but_for_that_one(
    cores: int, limits: list[int], turns: list[int]
) -> None:
    core = Core(cores=cores)
    for index, limit in enumerate(limits):
        core.own(str(index), max_threads=limit, shares_cores=True)
    for turn, pick in enumerate(turns):
        name = str(pick % len(limits))
        core.leaf(turn, "a", name)
        held = [e for e in core.state.owned.values() if e.step is not None and e.max_threads > 0]
        assert all(1 <= engine.threads <= max(1, engine.max_threads) for engine in held)
        beyond = sum(engine.threads for engine in held) - cores
        assert beyond <= sum(engine.threads == 1 for engine in held)
        # An engine may be waiting for a caller who has been coming back at once.
        if turn % 3 == 2 and core.engine(name).step is not None:
            core.end_step(name)

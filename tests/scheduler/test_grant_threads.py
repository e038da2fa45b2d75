"""How many threads a step may use: all cores, or a share beside an engine that needs them long."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from core_harness import Core, spec
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.scheduler.commands import Command, StartStep


def threads(commands: list[Command]) -> int:
    """Return the threads of the one step among these commands."""
    (step,) = [command for command in commands if isinstance(command, StartStep)]
    return step.threads


@pytest.mark.parametrize(
    ("cores", "engines", "busy", "granted"),
    [
        pytest.param(8, {"x": 16}, "x", [8], id="alone, all cores"),
        pytest.param(8, {"x": 2}, "x", [2], id="no more than it can use"),
        pytest.param(4, {"x": 4, "y": 3}, "xy", [4, 3], id="all cores beside another"),
        pytest.param(6, {"shares": 6, "x": 6, "y": 6}, "xy", [6, 6], id="none that shares works"),
        pytest.param(4, {"shares": 4, "x": 4}, ("shares", "x"), [2, 2], id="shared by two"),
        pytest.param(
            *(6, {"shares": 6, "x": 6, "y": 6}, ("shares", "x", "y"), [2, 2, 2]), id="by three"
        ),
        pytest.param(
            *(4, {"shares": 0, "x": 4, "y": 4}, ("shares", "x", "y"), [1, 4, 4]),
            id="one that shares and computes elsewhere makes none share",
        ),
    ],
)
def test_cores_are_shared_only_where_an_engine_that_shares_them_has_work(
    cores: int, engines: dict[str, int], busy: Sequence[str], granted: list[int]
) -> None:
    core = Core(cores=cores)
    for name, max_threads in engines.items():
        core.own(name, max_threads=max_threads, shares_cores=name == "shares")
    steps = core.graph(1, *(spec(f"of {name}", name) for name in busy))
    assert [step.threads for step in steps if isinstance(step, StartStep)] == granted


@pytest.mark.parametrize("max_threads", [0, -1])
def test_an_engine_that_computes_elsewhere_gets_one_and_takes_none_away(max_threads: int) -> None:
    core = Core(cores=4).own("remote", max_threads=max_threads).own(max_threads=4)
    assert threads(core.leaf(1, "a", "remote")) == 1
    assert threads(core.leaf(2, "a")) == 4


def test_two_engines_with_work_share_equally() -> None:
    core = Core(cores=4).own("x", max_threads=4, shares_cores=True).own("y", max_threads=4)
    core.leaf(1, "a", "x")
    assert threads(core.leaf(2, "a", "y")) == 1
    core.leaf(3, "a", "x")
    assert threads(core.end_step("x")) == 2
    core.leaf(4, "a", "y")
    assert threads(core.end_step("y")) == 2


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

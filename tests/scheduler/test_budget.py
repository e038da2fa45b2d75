"""How long a step may take is measured, bounded, and no matter while one request is alone."""

from __future__ import annotations

import math

import pytest
from core_harness import Core, key
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.scheduler.commands import Command, StartStep
from rag_accel.scheduler.learning import (
    COMPANY_S,
    StepCosts,
    best_budget_s,
    bounded_budget_s,
    even_part,
    items_in,
)
from rag_accel.scheduler.state import CoreOptions

SECONDS = st.floats(1e-6, 100.0)
UNCUT_S = CoreOptions().step_timeout_s / 4  # so that a step that hangs can be told from a long one


def budget_of(commands: list[Command]) -> float | None:
    """Return the budget of the one step that is started."""
    (start,) = [command for command in commands if isinstance(command, StartStep)]
    return start.time_s


def timed(**options: float) -> Core:
    """Return a core with one engine whose steps end in time."""
    core = Core(**{"slice_min_s": 0.001, "slice_max_s": 0.5, **options})
    core.own(stepped=True, ends_in_time=True)
    return core


@given(border_s=SECONDS, service_s=SECONDS, other=st.floats(0.1, 10.0))
def test_no_other_budget_shortens_waiting_more(
    border_s: float, service_s: float, other: float
) -> None:
    def gain_s(budget_s: float) -> float:
        return (service_s - budget_s) / 2 - border_s * service_s / budget_s

    best = best_budget_s(border_s, service_s)
    assert gain_s(best) >= gain_s(best * other) - 1e-9 * service_s


@given(border_s=SECONDS, service_s=SECONDS)
def test_a_budget_stays_within_its_bounds(border_s: float, service_s: float) -> None:
    assert 0.008 <= bounded_budget_s(border_s, service_s, 0.008, 0.1) <= 0.1


def test_before_anything_has_ended_the_upper_bound_holds() -> None:
    assert bounded_budget_s(1.0, 0.0, 0.008, 0.1) == 0.1


def test_a_border_costs_what_is_measured_around_a_step_and_what_a_step_costs_by_itself() -> None:
    costs = StepCosts()
    costs.learn_border(0.1005, 0.1)
    assert costs.beta_s(0.0005) == pytest.approx(0.001)


@given(base_s=st.floats(0.0, 1.0), item_s=st.floats(0.001, 1.0))
def test_what_a_step_costs_by_itself_is_learned_from_parts_of_different_sizes(
    base_s: float, item_s: float
) -> None:
    costs = StepCosts()
    costs.learn_part(base_s + 4 * item_s, 4)
    assert costs.beta_s(0.001) == 0.001  # one size alone says nothing
    for items in (1, 8, 2, 16):
        costs.learn_part(base_s + items * item_s, items)
    assert costs.beta_s(0.0) == pytest.approx(base_s, abs=1e-6)
    assert costs.beta_s(9.0) == 9.0


def test_a_base_is_never_less_than_nothing() -> None:
    costs = StepCosts()
    for items in (1, 8, 2, 16):
        costs.learn_part(0.01 * items * items, items)
    assert costs.beta_s(0.0) == 0.0


def test_a_step_that_seems_longer_than_it_was_waited_for_has_a_free_border() -> None:
    costs = StepCosts()
    costs.learn_border(0.1, 0.2)
    assert costs.border_s == 0.0


@pytest.mark.parametrize(
    ("item_s", "most", "items"),
    [(0.01, 64, 10), (0.01, 4, 4), (1.0, 64, 1), (0, 64, 8), (0, 1, 1), (5e-324, 64, 64)],
)
def test_so_many_items_fit_into_a_budget(item_s: float, most: int, items: int) -> None:
    assert items_in(0.1001, item_s, most) == items


@given(left=st.integers(0, 1000), most=st.integers(1, 100))
def test_parts_differ_by_one_item_at_most_and_miss_none(left: int, most: int) -> None:
    parts: list[int] = []
    while left - sum(parts) > 0:
        parts.append(even_part(left - sum(parts), most))
    assert sum(parts) == left
    assert not parts or (max(parts) <= most and max(parts) - min(parts) <= 1)


def test_a_lone_request_is_never_cut_however_much_it_brings() -> None:
    core = timed()
    assert budget_of(core.leaf(1, "a", size=500)) == UNCUT_S
    core.leaf(1, "b", at=0.1)
    assert budget_of(core.end_step(at=1.0, took=0.9)) == UNCUT_S


def test_a_step_has_a_budget_as_soon_as_another_request_lives() -> None:
    core = timed()
    core.leaf(1, "a")
    core.leaf(2, "a", at=0.01)
    assert budget_of(core.end_step(at=0.1, took=0.1, final=[])) == 0.5
    core.leaf(3, "a", at=0.11)
    # One step of 0.1 and one of 0.2 s served two requests in the second: 0.1 + 0.1 s for the first.
    after = core.end_step(at=0.3005, took=0.2, final=[key(1, "a")])
    assert budget_of(after) == pytest.approx(math.sqrt(2 * 0.0005 * 0.2))


def test_another_request_anywhere_counts_as_it_may_come() -> None:
    core = timed()
    core.open(2)
    assert budget_of(core.leaf(1, "a")) == 0.5


def test_one_that_has_just_ended_may_come_back_and_is_forgotten_after_a_while() -> None:
    core = timed()
    core.leaf(2, "a")
    core.open(1, at=0.01)
    core.end_step(at=0.1)
    assert budget_of(core.leaf(1, "a", at=COMPANY_S)) == 0.001
    assert budget_of(core.end_step(at=0.1 + COMPANY_S, final=[])) == UNCUT_S


def test_only_engines_that_end_in_time_have_a_budget() -> None:
    core = Core().own(stepped=True).own("f", ends_in_time=True)
    core.open(3)
    assert budget_of(core.leaf(1, "a")) is None
    assert budget_of(core.leaf(2, "a", "f")) is None


def test_what_a_step_leaves_over_goes_on_and_newcomers_join_it() -> None:
    core = timed()
    core.leaf(1, "a")
    core.leaf(2, "a", at=0.01)
    assert core.end_step(at=0.1, final=[]) == [StartStep.match(admitted=(key(2, "a"),), time_s=0.5)]
    core.leaf(3, "a", at=0.11)
    assert core.end_step(at=0.2, final=[key(2, "a")])[-1] == StartStep.match(
        admitted=(key(3, "a"),)
    )
    assert list(core.engine().running) == [key(1, "a"), key(3, "a")]


def test_equal_times_give_equal_budgets() -> None:
    def budgets() -> list[float | None]:
        core = timed(slice_max_s=50.0)
        core.open(9)
        found = [budget_of(core.leaf(1, "0"))]
        for turn in range(1, 20):
            core.leaf(1, str(turn), at=turn)
            found.append(budget_of(core.end_step(at=turn + 0.3, took=0.1 + turn / 100)))
        return found

    assert budgets() == budgets()
    assert len(set(budgets())) > 10

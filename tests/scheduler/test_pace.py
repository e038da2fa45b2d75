"""How many threads a step gets, once steps of its size have been seen."""

from __future__ import annotations

import itertools

from core_harness import Core, key
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.scheduler.commands import StartStep
from rag_accel.scheduler.messages import EngineName, NodeReport, StepEnded
from rag_accel.scheduler.pace import FIRST_PATIENCE, LAST_PATIENCE, Pace, size_class


def _play(pace: Pace, cost: dict[int, float], steps: int, most: int = 2) -> list[int]:
    chosen: list[int] = []
    for _ in range(steps):
        threads = pace.choose(most)
        chosen.append(threads)
        pace.learn(threads, most, 4, 4 * cost[threads])
    return chosen


def test_both_numbers_are_tried_and_the_faster_is_kept() -> None:
    assert _play(Pace(), {1: 0.02, 2: 0.01}, 10) == [2, 1, *[2] * 8]
    assert _play(Pace(), {1: 0.01, 2: 0.30}, 10) == [2, 1, *[1] * 8]


def test_where_the_difference_is_small_each_is_tried_three_times() -> None:
    assert _play(Pace(), {1: 0.013, 2: 0.01}, 10) == [2, 1, 2, 1, 2, 1, *[2] * 4]


def test_one_slow_step_does_not_decide() -> None:
    pace = Pace()
    for seconds in (0.018, 0.015, 0.010, 0.015, 0.010, 0.015):
        pace.learn(pace.choose(2), 2, 1, seconds)
    assert pace.choose(2) == 2


def test_a_first_step_that_prepares_something_does_not_count() -> None:
    pace = Pace()
    chosen: list[int] = []
    for seconds in (0.9, 0.46, 0.29, 0.29):
        chosen.append(pace.choose(2))
        pace.learn(chosen[-1], 2, 14, seconds)
    assert chosen == [2, 1, 2, 2]


def test_the_loser_is_tried_again_ever_more_rarely() -> None:
    chosen = _play(Pace(), {1: 0.01, 2: 0.05}, 20_000)
    trials = [place for place, threads in enumerate(chosen) if threads == 2][1:]
    gaps = [later - earlier for earlier, later in itertools.pairwise(trials)]
    assert gaps == sorted(gaps)
    assert gaps[0] > FIRST_PATIENCE
    assert gaps[-1] == LAST_PATIENCE + 1


def test_a_change_of_the_machine_is_noticed() -> None:
    pace = Pace()
    _play(pace, {1: 0.01, 2: 0.30}, 100)
    assert _play(pace, {1: 0.02, 2: 0.01}, 1000)[-20:] == [2] * 20


def test_a_single_granted_thread_is_not_experimented_with() -> None:
    pace = Pace({2: 0.001, 1: 9.0})
    assert pace.choose(1) == 1


@given(st.integers(0, 10_000))
def test_sizes_of_one_class_differ_less_than_twofold(items: int) -> None:
    assert size_class(items) == size_class(items + 1) or (items + 1) & items == 0


def test_an_engine_learns_per_size_of_step() -> None:
    core = Core(cores=2)
    core.own(max_threads=2)
    granted: list[int] = []
    for number in range(6):
        (step,) = [c for c in core.leaf(number, "a") if isinstance(c, StartStep)]
        granted.append(step.threads)
        core.end_step(took=0.5 if step.threads == 2 else 0.01)
    assert granted == [2, 1, 1, 1, 1, 1]


def test_steps_over_work_that_is_left_over_teach_nothing() -> None:
    core = Core(cores=2)
    core.own(max_threads=2, stepped=True)
    granted: list[int] = []
    (step,) = [c for c in core.leaf(0, "a", size=16) if isinstance(c, StartStep)]
    for _ in range(4):
        granted.append(step.threads)
        (step,) = [c for c in core.end_step(partial=[key(0, "a")]) if isinstance(c, StartStep)]
    core.end_step()  # ends all its members, one of which has been in the steps before
    assert granted == [2] * 4
    assert core.engine().paces == {}


def test_a_step_of_a_stepped_engine_that_ends_all_it_began_teaches() -> None:
    core = Core(cores=2)
    core.own(max_threads=2, stepped=True)
    granted: list[int] = []
    for number in range(4):
        (step,) = [c for c in core.leaf(number, "a", size=16) if isinstance(c, StartStep)]
        granted.append(step.threads)
        core.end_step(took=0.5 if step.threads == 2 else 0.01)
    assert granted == [2, 1, 1, 1]


def test_an_engine_that_tells_what_it_computed_is_believed() -> None:
    core = Core(cores=2)
    core.own(max_threads=2, stepped=True)
    granted: list[int] = []
    (step,) = [c for c in core.leaf(0, "a", size=16) if isinstance(c, StartStep)]
    for cost in (100.0, 10.0, 50.0, 20.0):
        granted.append(step.threads)
        took = cost * (0.02 if step.threads == 1 else 0.01)
        event = StepEnded(EngineName("e"), step.step, (), took, cost)
        (step,) = [c for c in core.send(event) if isinstance(c, StartStep)]
    assert granted == [2, 1, 2, 2]


def test_a_step_that_computed_nothing_here_teaches_nothing() -> None:
    core = Core(cores=2)
    core.own(max_threads=2)
    (step,) = [c for c in core.leaf(0, "a") if isinstance(c, StartStep)]
    report = NodeReport(key(0, "a"), "final")
    core.send(StepEnded(EngineName("e"), step.step, (report,), 1.0, 0.0))
    assert core.engine().paces == {}


def test_an_engine_that_stops_telling_what_it_computes_gets_all_that_is_granted() -> None:
    core = Core(cores=2)
    core.own(max_threads=2)
    granted: list[int] = []
    for number, cost in enumerate((1.0, 1.0, 1.0, 0.0, 0.0, 0.0)):
        (step,) = [c for c in core.leaf(number, "a") if isinstance(c, StartStep)]
        granted.append(step.threads)
        report = NodeReport(key(number, "a"), "final")
        took = 0.5 if step.threads == 2 else 0.01
        core.send(StepEnded(EngineName("e"), step.step, (report,), took, cost))
    assert granted == [2, 1, 1, 1, 2, 2]

"""An engine that does not come back loses its work, and is used again once it does."""

from __future__ import annotations

from core_harness import Core, key, spec

from rag_accel.scheduler.commands import CancelWork, EndNode, EndRequest, StartStep


def hung(stepped: bool = False) -> Core:
    """Return a core whose engine was given up at time 10 with one leaf running, one queued."""
    core = Core(step_timeout_s=10).own(stepped=stepped)
    core.leaf(1, "a")
    core.leaf(2, "a")
    core.tick(10)
    return core


def test_the_core_asks_to_be_woken_when_a_step_would_hang() -> None:
    core = Core(step_timeout_s=10).own()
    core.leaf(1, "a", at=3)
    assert core.wakes == [13]


def test_a_step_that_takes_less_is_not_lost() -> None:
    core = Core(step_timeout_s=10).own()
    core.leaf(1, "a")
    assert core.tick(9.9) == []
    assert core.end_step(at=9.95) == [EndNode.match(outcome="done")]


def test_all_that_runs_or_waits_on_a_hung_engine_is_lost() -> None:
    core = Core(step_timeout_s=10).own()
    core.leaf(1, "a")
    core.leaf(2, "a")
    assert core.tick(10) == [
        EndNode.match(node=key(1, "a"), outcome="lost"),
        EndNode.match(node=key(2, "a"), outcome="lost"),
    ]


def test_what_arrives_at_a_lost_engine_is_lost_at_once() -> None:
    assert hung().leaf(3, "a", at=11) == [EndNode.match(node=key(3, "a"), outcome="lost")]


def test_a_late_step_brings_the_engine_back_and_its_results_are_dropped() -> None:
    core = hung()
    assert core.end_step(at=50, final=[key(1, "a")]) == []
    assert core.state.is_empty()
    assert core.leaf(3, "a", at=51) == [StartStep.match(admitted=(key(3, "a"),))]


def test_a_late_step_that_raised_brings_the_engine_back_too() -> None:
    core = hung()
    assert core.fail_step(at=50) == []
    assert core.leaf(3, "a", at=51) == [StartStep.match(admitted=(key(3, "a"),))]


def test_a_stepped_engine_is_asked_to_forget_what_it_lost() -> None:
    core = Core(step_timeout_s=10).own(stepped=True)
    core.leaf(1, "a")
    assert core.tick(10) == [
        CancelWork.match(nodes=(key(1, "a"),)),
        EndNode.match(node=key(1, "a"), outcome="lost"),
    ]
    assert core.end_step(at=20, final=[]) == []
    assert core.leaf(2, "a", at=21) == [StartStep.match(admitted=(key(2, "a"),))]


def test_a_graph_with_a_lost_node_ends_and_frees_its_other_engines() -> None:
    core = Core(step_timeout_s=10).own().own("f")
    core.leaf(2, "busy", "f", at=5)
    core.graph(1, spec("a"), spec("b", "f"))
    assert core.tick(10) == [
        EndNode.match(node=key(1, "a"), outcome="lost"),
        EndRequest.match(request=1, outcome="lost", node=key(1, "a")),
    ]
    assert core.end_step("f", at=11) == [EndNode.match(node=key(2, "busy"), outcome="done")]


def test_other_engines_are_not_lost_with_it() -> None:
    core = Core(step_timeout_s=10).own().own("f")
    core.leaf(1, "a")
    core.leaf(2, "a", "f", at=1)
    assert core.tick(10) == [EndNode.match(node=key(1, "a"), outcome="lost")]
    assert core.wakes[-1] == 11


def test_a_busy_core_notices_a_hang_without_a_tick() -> None:
    core = Core(step_timeout_s=10).own().borrow()
    core.leaf(1, "a")
    assert EndNode.match(node=key(1, "a"), outcome="lost") in core.leaf(2, "a", "b", at=11)


def test_a_lost_engine_is_not_given_up_twice() -> None:
    core = hung()
    assert core.tick(500) == []
    assert core.state.wake_at is None


def test_an_engine_that_bounds_its_work_is_asked_to_return_before_it_would_be_lost() -> None:
    core = Core(step_timeout_s=10).own(stepped=True, bounds_its_work=True)
    assert core.leaf(1, "a") == [StartStep.match(time_s=5)]
    assert core.end_step(at=5, final=[]) == [StartStep.match(admitted=(), time_s=5)]
    assert core.tick(14) == []
    assert core.end_step(at=14, final=[key(1, "a")]) == [EndNode.match(outcome="done")]


def test_an_engine_that_bounds_its_work_and_does_not_return_is_lost_all_the_same() -> None:
    core = Core(step_timeout_s=10).own(stepped=True, bounds_its_work=True)
    core.leaf(1, "a")
    assert core.tick(10) == [
        CancelWork.match(nodes=(key(1, "a"),)),
        EndNode.match(node=key(1, "a"), outcome="lost"),
    ]


def test_only_a_stepped_engine_can_return_and_keep_its_work() -> None:
    core = Core(step_timeout_s=10).own(bounds_its_work=True)
    assert core.leaf(1, "a") == [StartStep.match(time_s=None)]


def test_no_step_is_asked_to_wait_longer_than_a_thread_can() -> None:
    core = Core(step_timeout_s=float("inf")).own(stepped=True, bounds_its_work=True)
    assert core.leaf(1, "a") == [StartStep.match(time_s=3600.0)]


def test_nothing_is_started_for_a_request_that_reaches_a_lost_engine_too() -> None:
    core = hung()
    core.own("s", stepped=True)
    assert core.graph(3, spec("b", "s"), spec("a"), at=11) == [
        EndNode.match(node=key(3, "a"), outcome="lost"),
        EndRequest.match(request=3, outcome="lost"),
    ]


def test_an_engine_that_ends_in_time_is_asked_back_long_before_it_would_be_lost() -> None:
    core = Core(step_timeout_s=12).own(stepped=True, ends_in_time=True)
    assert core.leaf(1, "a") == [StartStep.match(time_s=3)]
    for at in range(4, 52, 4):
        assert core.end_step(at=at, final=[]) == [StartStep.match(admitted=(), time_s=3)]
    assert core.end_step(at=55, final=[key(1, "a")]) == [EndNode.match(outcome="done")]


def test_an_engine_that_ends_in_time_and_does_not_is_lost_all_the_same() -> None:
    core = Core(step_timeout_s=12).own(stepped=True, ends_in_time=True)
    core.leaf(1, "a")
    core.end_step(at=3, final=[])
    assert core.tick(14.9) == []
    assert core.tick(15) == [
        CancelWork.match(nodes=(key(1, "a"),)),
        EndNode.match(node=key(1, "a"), outcome="lost"),
    ]


def test_the_shorter_of_slice_and_time_before_a_hang_counts() -> None:
    core = Core(step_timeout_s=1.0, slice_max_s=0.5).own(stepped=True, ends_in_time=True)
    core.open(2)
    assert core.leaf(1, "a") == [StartStep.match(time_s=0.25)]

"""An idle engine waits only for a newcomer that is known to come, and never for long."""

from __future__ import annotations

import pytest
from core_harness import Core, key, spec

from rag_accel.scheduler.commands import EndNode, StartCall, StartStep
from rag_accel.scheduler.state import MAX_PROGRAMS, ProgramTimes


def learned(step_s: float = 0.1, gap_s: float = 0.002, **options: float) -> Core:
    """Return a core that has seen program ``p`` reach engine ``e`` ``gap_s`` after its start.

    A step of the engine took ``step_s``; nothing lives at time 1, when this returns.
    """
    core = Core(**options).own().own("f")
    core.open(50)
    core.leaf(50, "a", at=gap_s)
    core.end_step(at=gap_s + step_s, took=step_s)
    core.close_program(50)
    return core


def starts(*nodes: tuple[int, str]) -> list[object]:
    """Return the one command that starts a step of ``e`` over these nodes."""
    return [StartStep.match(engine="e", admitted=tuple(key(*node) for node in nodes))]


def test_one_live_request_never_waits() -> None:
    core = learned()
    core.open(1, at=1)
    assert core.leaf(1, "a", at=1.002) == starts((1, "a"))


def test_an_engine_waits_for_a_program_that_is_about_to_come() -> None:
    core = learned()
    core.open(1, at=1)
    assert core.leaf(2, "a", at=1.001) == []
    assert core.wakes[-1] == pytest.approx(1.002)
    assert core.leaf(1, "a", at=1.0015) == starts((1, "a"), (2, "a"))


def test_the_wait_ends_when_the_newcomer_is_late() -> None:
    core = learned()
    core.open(1, at=1)
    core.leaf(2, "a", at=1.001)
    assert core.tick(core.wakes[-1]) == starts((2, "a"))


def test_an_engine_that_waits_is_woken_by_any_later_event() -> None:
    core = learned().borrow()
    core.open(1, at=1)
    core.leaf(2, "a", at=1.001)
    assert core.leaf(2, "b", "b", at=1.01) == [
        StartCall(key(2, "b"), "b"),
        *starts((2, "a")),
    ]


@pytest.mark.parametrize(
    ("options", "program", "at"),
    [
        pytest.param({"gap_s": 0.010}, "p", 1.001, id="further away than batch_wait_s"),
        pytest.param({"batch_wait_s": 0.0}, "p", 1.001, id="turned off"),
        pytest.param({}, "another program", 1.001, id="its ways are unknown"),
        pytest.param({}, "p", 1.0021, id="should have come already"),
    ],
)
def test_a_newcomer_that_is_not_about_to_come_is_not_waited_for(
    options: dict[str, float], program: str, at: float
) -> None:
    core = learned(**options)
    core.open(1, program, at=1)
    assert core.leaf(2, "a", at=at) == starts((2, "a"))


def test_no_wait_is_longer_than_a_twentieth_of_the_step() -> None:
    core = learned(step_s=0.02)
    core.open(1, at=1)
    assert core.leaf(2, "a", at=1.0009) == starts((2, "a"))
    core = learned(step_s=0.02)
    core.open(1, at=1)
    assert core.leaf(2, "a", at=1.0011) == []


def test_a_program_that_usually_goes_elsewhere_is_not_waited_for() -> None:
    core = learned()
    core.open(1, at=1)
    assert core.leaf(2, "a", "f", at=1.001) == [StartStep.match(engine="f")]


def test_an_engine_whose_step_time_is_unknown_does_not_wait() -> None:
    core = learned()
    core.engine().step_mean_s = 0.0
    core.open(1, at=1)
    assert core.leaf(2, "a", at=1.001) == starts((2, "a"))


def test_the_latency_model_counts_items_until_a_step_was_measured() -> None:
    for size, waits in ((1, False), (10, True)):
        core = Core().own("f", per_item_s=0.01)
        core.state.programs["p"] = ProgramTimes({None: {core.engine("f").name: 0.002}})
        core.open(1, at=1)
        assert (core.leaf(2, "a", "f", at=1.0005, size=size) == []) == waits


def test_a_full_batch_does_not_wait() -> None:
    core = learned().own("small", max_batch=2)
    core.state.programs["p"].gaps[None][core.engine("small").name] = 0.002
    core.engine("small").step_mean_s = 0.1
    core.open(1, at=1)
    assert core.leaf(2, "a", "small", at=1.001) == []
    assert core.leaf(3, "a", "small", at=1.001) == [
        StartStep.match(admitted=(key(2, "a"), key(3, "a")))
    ]


def test_a_wait_is_bounded_although_newcomers_keep_being_expected() -> None:
    core = learned()
    core.open(1, at=1)
    assert core.leaf(99, "a", at=1.0015) == []
    for turn in range(1, 10):
        at = 1.0015 + turn * 0.0004
        if core.open(1 + turn, at=at) == starts((99, "a")):
            break
    assert 1.0015 + 0.0025 < at <= 1.0015 + 0.0034


@pytest.mark.parametrize("end", ["cancel_request", "close_program"])
def test_the_wait_ends_with_the_expected_program(end: str) -> None:
    core = learned()
    core.open(1, at=1)
    core.leaf(2, "a", at=1.001)
    assert getattr(core, end)(1, at=1.0011) == starts((2, "a"))


def test_the_wait_ends_when_the_expected_program_goes_elsewhere() -> None:
    core = learned()
    core.open(1, at=1)
    core.leaf(2, "a", at=1.001)
    assert (
        core.leaf(1, "x", "f", at=1.0011)
        == [
            StartStep.match(engine="f"),
            *starts((2, "a")),
        ]
        or core.engine().step is not None
    )


def test_the_wait_is_over_when_no_request_is_left_to_be_served() -> None:
    core = learned()
    core.open(1, at=1)
    core.leaf(2, "a", at=1.001)
    assert core.cancel_node(2, "a", at=1.0011) == [EndNode.match(outcome="cancelled")]
    assert core.engine().wait_until is None
    assert core.leaf(1, "a", at=1.0015) == starts((1, "a"))


def graph_about_to_reach_e(core: Core, at: float) -> None:
    """Start request 1 whose node ``b`` on ``e`` waits for ``a``, a call of 0.1 s as learned."""
    core.borrow()
    core.leaf(60, "call", "b", at=at - 1)
    core.end_call(60, "call", at=at - 0.9)
    core.graph(1, spec("a", "b"), spec("b", "e", "a"), at=at)


def test_an_engine_waits_for_a_graph_whose_next_primitive_is_about_to_come() -> None:
    core = learned()
    graph_about_to_reach_e(core, at=2)
    assert core.leaf(2, "a", at=2.098) == []
    assert core.wakes[-1] == pytest.approx(2.1)
    assert core.end_call(1, "a", at=2.099) == [
        EndNode.match(node=key(1, "a")),
        *starts((1, "b"), (2, "a")),
    ]


def test_a_graph_that_needs_something_else_too_is_not_waited_for() -> None:
    core = learned().borrow()
    core.leaf(60, "call", "b", at=1)
    core.end_call(60, "call", at=1.1)
    core.graph(1, spec("a", "b"), spec("c", "f"), spec("b", "e", "a", "c"), at=2)
    assert core.leaf(2, "a", at=2.098) == starts((2, "a"))


def test_the_request_that_is_already_there_is_not_waited_for() -> None:
    core = learned().borrow()
    core.leaf(60, "call", "b", at=1)
    core.end_call(60, "call", at=1.1)
    core.open(99, "unknown", at=2)
    commands = core.graph(1, spec("a", "b"), spec("b", "e", "a"), at=2)
    assert commands == [StartCall(key(1, "a"), "b")]
    assert core.leaf(1, "inner", at=2.098) == starts((1, "inner"))


def test_the_time_a_node_needs_is_not_that_of_one_step() -> None:
    core = learned().own("s", stepped=True)
    core.leaf(60, "text", "s", at=1)
    for step in range(1, 10):
        core.end_step("s", at=1 + step / 10, took=0.1, final=[])
    core.end_step("s", at=2, took=0.1)
    core.graph(1, spec("text", "s"), spec("b", "e", "text"), at=3)
    core.end_step("s", at=3.098, took=0.098, final=[])
    assert core.leaf(2, "a", at=3.198) == starts((2, "a"))
    core.end_step(at=3.3)
    assert core.leaf(2, "a", at=3.999) == []


def test_an_unmeasured_engine_announces_no_newcomer() -> None:
    core = learned().borrow("new")
    core.graph(1, spec("a", "new"), spec("b", "e", "a"), at=2)
    assert core.leaf(2, "a", at=2) == starts((2, "a"))


def test_what_rounding_alone_puts_into_the_future_is_not_waited_for() -> None:
    core = learned().borrow()
    since, mean_s = 2.0, 0.1
    while since <= (since + mean_s) - mean_s:
        since += 0.001
    core.engine("b").node_mean_s = mean_s
    core.graph(1, spec("a", "b"), spec("b", "e", "a"), at=since)
    assert core.leaf(2, "a", at=since + mean_s) == starts((2, "a"))


def test_gaps_move_an_eighth_of_the_way_to_what_is_seen() -> None:
    core = learned(gap_s=0.002)
    core.open(1, at=1)
    core.leaf(1, "a", at=1.010)
    assert core.state.programs["p"].gaps[None][core.engine().name] == pytest.approx(0.003)


def test_gaps_are_learned_between_the_leaves_of_a_program() -> None:
    core = learned()
    core.open(1, at=1)
    core.leaf(1, "a", at=1.002)
    core.end_step(at=1.1)
    core.leaf(1, "b", "f", at=1.105)
    last = core.engine().name
    assert core.state.programs["p"].gaps[last] == {core.engine("f").name: pytest.approx(0.005)}


def test_learned_gaps_are_bounded() -> None:
    core = Core().own()
    for request in range(MAX_PROGRAMS + 10):
        core.state.programs[str(request)] = ProgramTimes()
    core.open(1)
    core.leaf(1, "a")
    before = len(core.state.programs)
    core.open(2)
    core.leaf(2, "a")
    assert len(core.state.programs) == before

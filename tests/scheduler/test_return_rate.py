"""An idle engine waits a moment for callers that have always come back at once."""

from __future__ import annotations

import pytest
from core_harness import Core, key

from rag_accel.scheduler.commands import StartStep
from rag_accel.scheduler.learning import ReturnRateLearner

STEP_S = 0.02
WINDOW_S = 0.05 * STEP_S


def in_a_loop(rounds: int, callers: int = 4, think_s: float = 0.0001) -> tuple[Core, float]:
    """Return a core after so many rounds of callers who come back one by one, and the time."""
    core = Core().own()
    now = 0.0
    ids = iter(range(1, 10_000))
    for _ in range(rounds):
        for caller in range(callers):
            core.leaf(next(ids), "a", at=now + caller * think_s)
        while core.engine().step is None:
            core.tick(core.wakes[-1])
        now += STEP_S
        core.end_step(at=now, took=STEP_S)
        if core.engine().step is not None:  # the first of them had started alone
            now += STEP_S
            core.end_step(at=now, took=STEP_S)
    return core, now


def test_the_first_round_starts_at_once() -> None:
    core = Core().own()
    assert core.leaf(1, "a") == [StartStep.match(admitted=(key(1, "a"),))]


def test_callers_that_come_back_at_once_share_a_step() -> None:
    core, now = in_a_loop(rounds=8)
    for request in (91, 92, 93):
        assert core.leaf(request, "a", at=now + 0.0001) == []
    (start,) = core.leaf(94, "a", at=now + 0.0002)
    assert start == StartStep.match(admitted=tuple(key(n, "a") for n in (91, 92, 93, 94)))


def test_a_caller_that_does_not_come_back_is_waited_for_a_moment_only() -> None:
    core, now = in_a_loop(rounds=8)
    assert core.leaf(91, "a", at=now + 0.0001) == []
    assert core.wakes[-1] == pytest.approx(now + WINDOW_S)
    assert core.tick(core.wakes[-1]) == [StartStep.match(admitted=(key(91, "a"),))]


def test_callers_that_stayed_away_are_not_waited_for_again() -> None:
    core, now = in_a_loop(rounds=8)
    for request in range(91, 99):
        now += 10 * STEP_S
        assert core.leaf(request, "a", at=now) == [StartStep.match(admitted=(key(request, "a"),))]
        core.end_step(at=now + STEP_S, took=STEP_S)


def test_a_caller_alone_in_a_loop_never_waits() -> None:
    core, now = in_a_loop(rounds=8, callers=1)
    assert core.leaf(91, "a", at=now) == [StartStep.match(admitted=(key(91, "a"),))]


def test_callers_that_think_first_are_not_waited_for() -> None:
    core, now = in_a_loop(rounds=8, think_s=2 * WINDOW_S)
    assert core.leaf(91, "a", at=now) == [StartStep.match(admitted=(key(91, "a"),))]


def test_the_wait_can_be_turned_off() -> None:
    returns = ReturnRateLearner()
    for _ in range(8):
        returns.step_ended(4, 1.0, 0.0)
        returns.note_arrival(1.0)
    assert returns.expected_by(1.0) is None

"""The line of a member's steps: fit, forgetting, and what it does where sizes do not vary."""

from __future__ import annotations

import random

import pytest

from rag_accel.engines.devices.plan import LatencyFit, MemberLines


def test_steps_of_two_sizes_give_the_line() -> None:
    line = LatencyFit(1.0, 1.0)
    line.add(100, 0.5)
    line.add(300, 0.9)
    assert line.alpha == pytest.approx(0.002)
    assert line.beta == pytest.approx(0.3)


def test_five_steps_of_a_changed_device_move_the_line_most_of_the_way() -> None:
    line = LatencyFit(0.001, 0.0)
    rng = random.Random(0)
    for size in rng.sample(range(10, 1000), 50):
        line.add(size, 0.001 * size)
    for size in rng.sample(range(10, 1000), 50):
        line.add(size, 0.003 * size)
    assert line.predict_s(500) == pytest.approx(1.5, rel=0.1)


def test_steps_of_one_size_move_the_line_without_turning_it() -> None:
    line = LatencyFit(0.001, 0.1)
    for _ in range(3):
        line.add(100, 0.4)
    assert line.predict_s(100) == pytest.approx(0.4)
    assert line.beta / line.alpha == pytest.approx(100)


def test_a_line_without_a_guess_learns_from_one_step() -> None:
    line = LatencyFit(0.0, 0.0)
    line.add(100, 0.4)
    assert line.predict_s(50) == pytest.approx(0.2)


@pytest.mark.parametrize("steps", [((10, 1.0), (100, 0.5)), ((10, 0.001), (100, 1.0))])
def test_no_fit_predicts_less_for_more_or_below_zero(steps: tuple[tuple[int, float], ...]) -> None:
    line = LatencyFit(0.0, 0.0)
    for tokens, seconds in steps:
        line.add(tokens, seconds)
    assert line.alpha >= 0.0
    assert line.beta >= 0.0


def test_the_line_beside_a_neighbour_is_the_other_until_it_has_a_step() -> None:
    lines = MemberLines(0.001, 0.0)
    lines.add(100, 0.2, contended=False)
    assert lines.predict_s(100, contended=True) == pytest.approx(0.2)
    lines.add(100, 0.6, contended=True)
    assert lines.predict_s(100, contended=True) == pytest.approx(0.6)
    assert lines.predict_s(100, contended=False) == pytest.approx(0.2)


def test_steps_that_take_longer_than_predicted_widen_the_margin_until_they_are_old() -> None:
    lines = MemberLines(0.001, 0.0)
    for number in range(20):
        lines.add(100, 0.12 if number % 2 else 0.1, contended=False)
    assert 0.0 < lines.margin < 0.21
    for _ in range(60):
        lines.add(100, 0.1, contended=False)
    assert lines.margin == pytest.approx(0.0, abs=1e-3)

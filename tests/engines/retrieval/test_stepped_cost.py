"""What reading clusters costs is learned from what it took, and outliers bend nothing."""

from __future__ import annotations

import pytest

from rag_accel.engines.retrieval.stepped.scan import ScanCost


def test_a_new_cost_predicts_by_its_guesses() -> None:
    cost = ScanCost(1.0, 0.5)
    assert cost.predict_s(4) == 3.0
    assert cost.vectors_in(3.0) == 4.0
    assert cost.vectors_in(0.5) == 0.0


def test_both_parts_are_learned_from_the_first_observation_on() -> None:
    cost = ScanCost(1.0, 0.5)
    cost.observe(1000, 2.0, 0.25)
    assert (cost.base_s, cost.per_vector_s) == (0.25, 0.002)
    assert cost.predict_s(500) == 1.25


def test_scans_that_were_held_up_bend_nothing() -> None:
    cost = ScanCost(1.0, 0.5)
    for number in range(30):
        is_held_up = number % 3 == 0
        cost.observe(100 + number, (100 + number) * (5.0 if is_held_up else 0.01), 0.1)
    assert cost.per_vector_s == pytest.approx(0.01)
    assert cost.base_s == pytest.approx(0.1)


def test_a_lasting_change_is_followed() -> None:
    cost = ScanCost(0.0, 1.0)
    for rate in [0.01] * 100 + [0.03] * 40:
        cost.observe(10, 10 * rate, rate)
    assert cost.per_vector_s == pytest.approx(0.03)
    assert cost.base_s == pytest.approx(0.03)


@pytest.mark.parametrize(("vectors", "scan_s"), [(0, 1.0), (10, 0.0), (10, -1.0)])
def test_a_scan_that_says_nothing_is_ignored(vectors: int, scan_s: float) -> None:
    cost = ScanCost(1.0, 0.5)
    cost.observe(vectors, scan_s, 9.0)
    assert (cost.base_s, cost.per_vector_s) == (1.0, 0.5)


def test_the_base_is_never_negative() -> None:
    cost = ScanCost(1.0, 0.5)
    cost.observe(10, 1.0, -0.5)
    assert cost.base_s == 0.0

"""The smallest ratio is proposed that meets the target, errors allowed for."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from rag_accel.fidelity.proposal import RatioFidelity, proposed_ratio


def measured(*found: tuple[float, float, float]) -> list[RatioFidelity]:
    return [RatioFidelity(ratio, top1, error, 0.1, 0.01) for ratio, top1, error in found]


@pytest.mark.parametrize(
    ("found", "proposed"),
    [
        ([(0.0, 0.8, 0.0), (0.15, 0.95, 0.0), (0.3, 0.99, 0.0)], 0.15),
        ([(0.0, 1.0, 0.02), (0.15, 1.0, 0.0)], 0.0),
        ([(0.15, 0.96, 0.01), (0.3, 0.98, 0.01)], 0.3),
        ([(0.3, 0.98, 0.01), (0.15, 0.98, 0.01)], 0.15),
        ([(0.15, 0.96, 0.04), (0.3, 0.94, 0.0)], None),
        ([(0.3, 0.9, 0.0), (0.5, 1.0, 0.0)], None),
        ([(0.49, 1.0, 0.0), (0.5, 1.0, 0.0)], 0.49),
        ([], None),
    ],
)
def test_the_smallest_that_meets_the_target_is_proposed(
    found: list[tuple[float, float, float]], proposed: float | None
) -> None:
    assert proposed_ratio(measured(*found), 0.95) == proposed

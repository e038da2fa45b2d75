"""The smallest ratio is proposed that meets the target, errors allowed for."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from rag_accel.fidelity.divergence import Divergence
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


def test_figures_are_means_over_prompts_with_their_standard_errors() -> None:
    found = RatioFidelity.of(0.15, [Divergence(9.0, 0.1, 0.8), Divergence(9.0, 0.3, 1.0)])
    assert (found.ratio, found.top1, found.kl) == pytest.approx((0.15, 0.9, 0.2))
    assert (found.top1_error, found.kl_error) == pytest.approx((0.1, 0.1))
    assert found.least_top1 == pytest.approx(0.7)

"""The cost model against the closed form and against the paper's tables."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.accelerator.measured_members import (
    MOST_DEPTH,
    DeviceDemand,
    capacity_of,
    depth_within,
    fit_latency,
    savings_of,
)
from rag_accel.engine_api import LatencyModel
from rag_accel.errors import ConfigError

V100 = LatencyModel(0.27, 0.0179)
XEON = LatencyModel(0.32, 0.0852)
DEMAND = DeviceDemand(mean_rate=1000.0, peak=4000.0, devices=2, price=3.0)


def drawn(rng: random.Random) -> tuple[LatencyModel, LatencyModel, float]:
    lines = [LatencyModel(rng.uniform(0, 1), rng.uniform(1e-3, 0.2)) for _ in range(2)]
    return lines[0], lines[1], rng.uniform(0.2, 3.0)


@pytest.mark.parametrize("seed", range(200))
def test_a_depth_is_the_last_batch_that_ends_in_time(seed: int) -> None:
    line, _, slo_s = drawn(random.Random(seed))
    depth = depth_within(line, slo_s)
    assert depth == 0 or line.predict_s(depth) <= slo_s + 1e-6
    assert line.predict_s(depth + 1) > slo_s


@pytest.mark.parametrize("seed", range(200))
def test_costs_and_savings_are_those_of_the_closed_form(seed: int) -> None:
    main, other, slo_s = drawn(random.Random(seed))
    first, second = depth_within(main, slo_s), depth_within(other, slo_s)
    if not first:
        return
    found = savings_of([main, other], slo_s)
    together = found.together
    assert found.saved_by_peak == pytest.approx(second / (first + second))
    assert found.saved_by_mean == pytest.approx(second / first)
    alone_cost, cost = (one.cost_by_peak(DEMAND) for one in (found.alone, together))
    assert cost == pytest.approx(4000 / (first + second) * 2 * 3)
    assert 1 - cost / alone_cost == pytest.approx(found.saved_by_peak)
    rate = first / main.predict_s(first) + (second / other.predict_s(second) if second else 0)
    assert together.cost_by_mean(DEMAND) == pytest.approx(1000 / rate * 2 * 3)
    whole = [max(0.0, (slo_s - line.base_s) / line.per_item_s) for line in (main, other)]
    expected = (whole[0] + (whole[1] if second else 0)) / whole[0]
    assert found.burst_bound == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(50))
def test_a_slower_device_adds_less_than_its_share_of_the_speed(seed: int) -> None:
    rng = random.Random(seed)  # Equations 14 to 19
    main = LatencyModel(rng.uniform(0, 0.5), rng.uniform(1e-3, 0.02))
    other = LatencyModel(main.base_s * 1.5 + 0.01, main.per_item_s * rng.uniform(2, 8))
    found = savings_of([main, other], 2.0)
    assert found.burst_bound - 1 < main.per_item_s / other.per_item_s


def test_a_device_too_slow_for_one_text_is_of_no_use() -> None:
    assert depth_within(LatencyModel(0.9, 0.2), 1.0) == 0
    found = savings_of([V100, LatencyModel(0.9, 0.2)], 1.0)
    assert found.saved_by_peak == found.saved_by_mean == 0.0
    assert found.burst_bound == 1.0


def test_a_first_device_of_no_use_saves_everything_and_costs_without_end() -> None:
    found = savings_of([LatencyModel(2.0, 0.1), XEON], 1.0)
    assert found.saved_by_peak == 1.0
    assert found.saved_by_mean == math.inf
    assert found.alone.cost_by_peak(DEMAND) == math.inf


def test_a_device_whose_steps_never_grow_is_bounded() -> None:
    assert depth_within(LatencyModel(0.5, 0.0), 1.0) == MOST_DEPTH
    assert math.isfinite(capacity_of([LatencyModel(0.0, 0.0)], 1.0).concurrency)


def test_without_devices_there_is_nothing_to_say() -> None:
    with pytest.raises(ConfigError, match="no device"):
        savings_of([], 1.0)


def test_the_papers_example_saves_about_a_fifth() -> None:
    found = savings_of([V100, XEON], 2.0)
    assert (found.alone.concurrency, found.together.concurrency) == (96, 96 + 19)
    assert found.saved_by_peak == pytest.approx(0.165, abs=0.001)
    assert found.saved_by_mean == pytest.approx(0.198, abs=0.001)


@pytest.mark.parametrize(
    "bad", [{"mean_rate": -1.0}, {"peak": math.nan}, {"peak": math.inf}, {"price": -2.0}]
)
def test_a_demand_that_is_no_number_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="a demand is no number"):
        DeviceDemand(**{"mean_rate": 1.0, "peak": 1.0, **bad})  # type: ignore[arg-type]


seconds = st.floats(0.0, 100.0)


@given(alpha=seconds, beta=seconds)
def test_points_on_a_line_give_that_line(alpha: float, beta: float) -> None:
    model = fit_latency([(items, alpha * items + beta) for items in (1, 2, 4, 8, 16)])
    assert model.per_item_s == pytest.approx(alpha, abs=1e-9)
    assert model.base_s == pytest.approx(beta, abs=1e-9)


def test_a_line_that_would_start_below_zero_goes_through_the_origin() -> None:
    model = fit_latency([(1, 0.5), (2, 2.0)])
    assert model == LatencyModel(base_s=0.0, per_item_s=pytest.approx(0.9))


def test_latency_that_falls_with_concurrency_is_fitted_as_constant() -> None:
    assert fit_latency([(1, 2.0), (2, 1.0)]) == LatencyModel(base_s=1.5, per_item_s=0.0)


points = st.lists(st.tuples(st.integers(1, 64), seconds), min_size=2, max_size=8)


@given(points=points, alpha=seconds, beta=seconds)
def test_no_line_with_bounds_at_zero_fits_better(points: Any, alpha: float, beta: float) -> None:
    if len({items for items, _ in points}) < 2:
        return

    def error(model: LatencyModel) -> float:
        return sum((model.predict_s(items) - s) ** 2 for items, s in points)

    model = fit_latency(points)
    assert model.base_s >= 0.0
    assert model.per_item_s >= 0.0
    other = LatencyModel(base_s=beta, per_item_s=alpha)
    assert error(model) <= error(other) * (1 + 1e-9) + 1e-6


@pytest.mark.parametrize("points", [[], [(1, 1.0)], [(2, 1.0), (2, 3.0)]])
def test_a_line_needs_two_concurrencies(points: Any) -> None:
    with pytest.raises(ConfigError, match="two concurrencies"):
        fit_latency(points)

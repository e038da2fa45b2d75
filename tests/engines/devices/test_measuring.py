"""What batches cost: the fitted line, and how it is measured."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_accel.engine_api import LatencyModel, PrimitiveKind, StepBudget, TextBatch
from rag_accel.engines.devices.measuring import fit_latency, measure
from rag_accel.engines.embedding.callable_engine import CallableEmbeddingEngine
from rag_accel.errors import ConfigError, EngineError
from rag_accel.testing import ManualClock

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


def engine_that_takes(clock: ManualClock, base_s: float, per_item_s: float) -> Any:
    def embed(texts: list[str]) -> list[list[float]]:
        clock.advance(base_s + per_item_s * len(texts))
        return [[1.0, 2.0]] * len(texts)

    return CallableEmbeddingEngine(embed, max_batch=64)


def texts(items: int) -> TextBatch:
    return TextBatch(("a",) * items)


def test_measuring_finds_what_an_engine_takes() -> None:
    clock = ManualClock()
    engine = engine_that_takes(clock, 0.25, 0.5)
    found = measure(engine, PrimitiveKind.EMBEDDING, texts, clock=clock)
    assert found.latency.base_s == pytest.approx(0.25)
    assert found.latency.per_item_s == pytest.approx(0.5)
    assert [items for items, _ in found.points] == [1, 2, 4, 8, 16, 32, 64]


def test_the_fastest_run_of_each_size_counts() -> None:
    clock = ManualClock()
    calls: list[int] = []

    def embed(batch: list[str]) -> list[list[float]]:
        calls.append(len(batch))
        clock.advance(9.0 if calls.count(len(batch)) == 1 else 1.0)
        return [[1.0]] * len(batch)

    engine = CallableEmbeddingEngine(embed)
    found = measure(engine, PrimitiveKind.EMBEDDING, texts, sizes=(4, 2, 4), clock=clock)
    assert found.points == ((2, 1.0), (4, 1.0))
    assert calls == [4, 2, 2, 2, 4, 4, 4]


def test_measuring_raises_the_error_of_a_text_and_leaves_the_engine_empty() -> None:
    def embed(texts: list[str]) -> Any:
        raise LookupError("no model")

    engine = CallableEmbeddingEngine(embed)
    with pytest.raises(LookupError, match="no model"):
        measure(engine, PrimitiveKind.EMBEDDING, texts)
    assert engine.num_unfinished == 0


def test_an_engine_that_never_ends_a_batch_is_not_waited_for() -> None:
    class Silent(CallableEmbeddingEngine):
        def step(self, budget: StepBudget) -> tuple[()]:
            return ()

    engine = Silent(lambda texts: [[1.0]] * len(texts))
    with pytest.raises(EngineError, match="does not end"):
        measure(engine, PrimitiveKind.EMBEDDING, texts)
    assert engine.num_unfinished == 0


@pytest.mark.parametrize("arguments", [{"sizes": (2, 2)}, {"repeats": 0}, {"sizes": (0, 1)}])
def test_measuring_nothing_is_refused(arguments: dict[str, Any]) -> None:
    engine = engine_that_takes(ManualClock(), 1.0, 1.0)
    with pytest.raises(ConfigError, match="nothing to measure"):
        measure(engine, PrimitiveKind.EMBEDDING, texts, **arguments)

"""Fit the latency of an embedding engine against concurrency (WindVE 4.2.2, Equation 12)."""

from __future__ import annotations

from collections.abc import Sequence

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import (
    Engine,
    EngineRequest,
    LatencyModel,
    PrimitiveKind,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.errors import ConfigError

CONCURRENCIES = (1, 2, 4, 8, 16, 32)


def fit_latency(points: Sequence[tuple[int, float]]) -> LatencyModel:
    """Fit ``t = alpha * C + beta`` with ``alpha, beta >= 0`` to pairs of concurrency and seconds.

    The least-squares line where it respects the bounds; otherwise the better of the line through
    the origin and the constant, which is where the bounded optimum then lies.

    Raises:
        ConfigError: fewer than two different concurrencies.
    """
    if len({items for items, _ in points}) < 2:
        raise ConfigError(
            "a line needs two concurrencies", found=str([items for items, _ in points])
        )
    count = len(points)
    mean_items = sum(items for items, _ in points) / count
    mean_s = sum(seconds for _, seconds in points) / count
    spread = sum((items - mean_items) ** 2 for items, _ in points)
    alpha = sum((items - mean_items) * (seconds - mean_s) for items, seconds in points) / spread
    beta = mean_s - alpha * mean_items
    if alpha >= 0.0 and beta >= 0.0:
        return LatencyModel(base_s=beta, per_item_s=alpha)
    through_origin = sum(items * seconds for items, seconds in points) / sum(
        items * items for items, _ in points
    )
    candidates = (
        LatencyModel(base_s=0.0, per_item_s=max(0.0, through_origin)),
        LatencyModel(base_s=max(0.0, mean_s), per_item_s=0.0),
    )
    return min(candidates, key=lambda model: _error(model, points))


def measure_profile(
    engine: Engine,
    texts: Sequence[str],
    *,
    concurrencies: Sequence[int] = CONCURRENCIES,
    repeats: int = 3,
    threads: int = 1,
    clock: Clock | None = None,
) -> LatencyModel:
    """Measure an idle embedding engine with growing concurrency and return the fitted line.

    Each of the concurrent requests holds one of ``texts``, taken in turn: give texts as long as
    real ones. The fastest of ``repeats`` counts; one more run before warms up. Steps the engine in
    the calling thread, so call it before a scheduler drives the engine. ``base_s`` is WindVE's
    beta, ``per_item_s`` its alpha.

    Raises:
        ConfigError: no text, or fewer than two different concurrencies.
        BaseException: what the engine reports as the error of a text.
    """
    if not texts or repeats < 1 or any(items < 1 for items in concurrencies):
        raise ConfigError(
            "nothing to measure",
            found=f"{len(texts)} texts, {repeats} repeats, concurrencies {list(concurrencies)}",
            valid="at least one text, one repeat and concurrencies from 1",
        )
    timer = clock or MonotonicClock()
    _run(engine, texts, max(concurrencies), threads, timer)
    points = [
        (items, min(_run(engine, texts, items, threads, timer) for _ in range(repeats)))
        for items in concurrencies
    ]
    return fit_latency(points)


def _error(model: LatencyModel, points: Sequence[tuple[int, float]]) -> float:
    return sum((model.predict_s(items) - seconds) ** 2 for items, seconds in points)


def _run(engine: Engine, texts: Sequence[str], items: int, threads: int, clock: Clock) -> float:
    work = [
        EngineRequest(
            WorkId(f"measure-{number}"),
            "measure",
            PrimitiveKind.EMBEDDING,
            TextBatch((texts[number % len(texts)],)),
        )
        for number in range(items)
    ]
    waiting = {request.id for request in work}
    started = clock.now()
    engine.submit(work)
    while waiting:
        for output in engine.step(StepBudget(threads=threads)):
            if output.kind == "error" and output.error is not None:
                engine.cancel([request.id for request in work])
                raise output.error
            if output.kind in ("final", "error"):
                waiting.discard(output.id)
    return clock.now() - started

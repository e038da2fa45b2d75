"""Measured latency of batches on an idle engine: the line of WindVE 4.2.2, Equation 12."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rag_accel.clock import Clock, MonotonicClock
from rag_accel.engine_api import (
    Engine,
    EngineRequest,
    LatencyModel,
    PrimitiveKind,
    RerankBatch,
    StepBudget,
    TextBatch,
    WorkId,
)
from rag_accel.engine_api.line_fit import LineFit
from rag_accel.errors import ConfigError, EngineError

SIZES = (1, 2, 4, 8, 16, 32, 64)

Payload = TextBatch | RerankBatch


@dataclass(frozen=True, slots=True)
class Measurements:
    """Times of batches of an engine.

    Args:
        points: pairs of items in a batch and seconds, of growing sizes, at least two.
    """

    points: tuple[tuple[int, float], ...]

    @property
    def latency(self) -> LatencyModel:
        """Return the fitted line: ``base_s`` is WindVE's beta, ``per_item_s`` its alpha."""
        return fit_latency(self.points)


def fit_latency(points: Sequence[tuple[int, float]]) -> LatencyModel:
    """Fit ``t = alpha * C + beta`` with ``alpha, beta >= 0`` to pairs of concurrency and seconds.

    Raises:
        ConfigError: fewer than two different concurrencies.
    """
    if len({items for items, _ in points}) < 2:
        raise ConfigError(
            "a line needs two concurrencies", found=str([items for items, _ in points])
        )
    fit = LineFit(keeps=1.0)
    for items, seconds in points:
        fit.add(items, seconds)
    line = fit.line(variation=0.0)
    assert line is not None, "two sizes have a slope"
    return line


def measure(
    engine: Engine,
    kind: PrimitiveKind,
    payload: Callable[[int], Payload],
    *,
    sizes: Sequence[int] = SIZES,
    repeats: int = 3,
    threads: int = 1,
    clock: Clock | None = None,
) -> Measurements:
    """Let an idle engine compute batches of growing size, the fastest of ``repeats`` each.

    One more run of the largest before warms up. Steps the engine in the calling thread, so call it
    before a scheduler drives the engine.

    Args:
        engine: the engine to measure; it is left without work.
        kind: the kind of work.
        payload: makes a batch of so many items; make them as long as real ones.
        sizes: items of the batches.
        repeats: runs of each size that count.
        threads: the threads of each step.
        clock: measures.

    Raises:
        ConfigError: no run, or fewer than two different sizes.
        EngineError: a batch does not end.
        BaseException: the error of a batch.
    """
    ascending = sorted(set(sizes))
    if repeats < 1 or len(ascending) < 2 or ascending[0] < 1:
        raise ConfigError(
            "nothing to measure",
            found=f"{repeats} repeats, sizes {list(sizes)}",
            valid="at least one repeat and two sizes from 1",
        )
    timer = clock or MonotonicClock()

    def run(items: int) -> float:
        return _run(engine, EngineRequest(_WORK, "measure", kind, payload(items)), threads, timer)

    run(ascending[-1])
    return Measurements(
        tuple((items, min(run(items) for _ in range(repeats))) for items in ascending)
    )


_WORK = WorkId("measure")
_MOST_STEPS = 10_000


def _run(engine: Engine, work: EngineRequest, threads: int, clock: Clock) -> float:
    started = clock.now()
    engine.submit([work])
    for _ in range(_MOST_STEPS):
        for output in engine.step(StepBudget(threads=threads)):
            if output.kind == "error":
                raise output.error or EngineError(
                    "an engine reported an error without saying which"
                )
            if output.kind == "final":
                return clock.now() - started
    engine.cancel([work.id])
    raise EngineError(
        "an engine does not end what it is measured with", found=f"{_MOST_STEPS} steps"
    )

"""Summarise alternating runs of a load: throughput, latencies and the ratios between arms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from bench.measure import Pairs, estimate, median, percentile, ratios
from bench.results import Row, median_row, row_of
from rag_accel.accelerator import Accelerator
from rag_accel_demo.load import Load

_OWNED = "embedding#"


def counted(number: int, thing: str) -> str:
    """Return ``1 user`` or ``64 users``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def load_rows(pairs: Pairs[Load], workload: str, throughput_metric: str) -> list[Row]:
    """Return throughput and latency of both arms."""
    arms = (("plain", pairs.plain), ("accelerated", pairs.other))
    return [
        row
        for system, loads in arms
        for row in system_rows(system, workload, loads, throughput_metric)
    ]


def system_rows(
    system: str, workload: str, loads: Sequence[Load], throughput_metric: str
) -> list[Row]:
    """Return throughput (one figure a run) and latency (one figure a call) of one system."""
    rates = [load.throughput_rps for load in loads]
    calls = [1000 * seconds for load in loads for seconds in load.latencies_s]
    return [
        # Of so few runs, and of rates, a 99th percentile would mean nothing.
        median_row(system, workload, throughput_metric, rates),
        row_of(system, workload, "latency_ms", calls),
    ]


def throughput_ratio(pairs: Pairs[Load]) -> float:
    """Return accelerated / plain throughput: the median over pairs of runs."""
    return estimate(ratios(pairs.map(lambda load: load.throughput_rps)))


def p99_ratio(pairs: Pairs[Load]) -> float:
    """Return accelerated / plain p99 latency, each of one run: the median over pairs of runs."""
    return median(ratios(pairs.map(lambda load: load.percentile_ms(0.99))))


def pooled_p99_ratio(pairs: Pairs[Load]) -> float:
    """Return accelerated / plain p99 latency, each over the calls of all runs."""
    return pooled_ratio(pairs, 0.99)


def pooled_ratio(pairs: Pairs[Load], share: float) -> float:
    """Return accelerated / plain percentile of latency, each over the calls of all runs."""
    tails = (
        percentile([seconds for load in loads for seconds in load.latencies_s], share)
        for loads in (pairs.other, pairs.plain)
    )
    return next(tails) / next(tails)


def lone_ms(pairs: Pairs[Load]) -> Pairs[float]:
    """Return the latencies of one user's requests in ms, those to the same question as pairs."""
    plain, other = (
        tuple(1000 * seconds for load in loads for seconds in load.latencies_s)
        for loads in (pairs.plain, pairs.other)
    )
    return Pairs(plain, other)


def ratio_rows(pairs: Pairs[Load], workload: str) -> list[Row]:
    """Return what each pair of runs says of throughput and of p99 latency."""
    found = {
        "throughput_ratio": ratios(pairs.map(lambda load: load.throughput_rps)),
        "p99_ratio": ratios(pairs.map(lambda load: load.percentile_ms(0.99))),
    }
    return [
        median_row("accelerated / plain", workload, metric, values)
        for metric, values in found.items()
    ]


def batch_rows(accelerator: Accelerator, workload: str) -> list[Row]:
    """Return the mean batch of the owned embedding engine since the last call; then start anew.

    Without this row nothing was batched: the embeddings object was not recognised.
    """
    engines = cast("dict[str, dict[str, Any]]", accelerator.metrics.snapshot().get("engines", {}))
    accelerator.metrics.reset()
    return [
        Row("accelerated", workload, "mean_batch", sizes["sum"] / count, None, count)
        for name, cells in engines.items()
        if name.startswith(_OWNED) and (count := (sizes := cells["batch_size"])["count"])
    ]

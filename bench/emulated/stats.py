"""Work of an emulated device in a window, against the most that its table allows."""

from __future__ import annotations

from dataclasses import dataclass

from bench.emulated.batch import ContinuousBatch
from bench.emulated.table import DeviceTable, max_decode_tokens_per_s


@dataclass(frozen=True, slots=True)
class DeviceStats:
    """Counters of one window.

    ``busy_s`` is near ``window_s`` whenever one sequence runs, at any load, so it says little.
    ``utilisation`` is what to read: the least seconds in which full batches of the same mean
    context could have done the same tokens, over ``window_s``.
    """

    table: str
    label: str
    steps: int
    prefill_tokens: int
    decode_tokens: int
    running: int
    waiting: int
    busy_s: float
    window_s: float
    decode_tokens_per_s: float
    max_decode_tokens_per_s: float
    utilisation: float


def summarise(table: DeviceTable, batch: ContinuousBatch, window_s: float) -> DeviceStats:
    """Relate the batch's counters to a window of ``window_s`` seconds."""
    counters = batch.counters
    mean_context = counters.context_tokens / max(1, counters.decode_tokens)
    best_rate = max_decode_tokens_per_s(table, mean_context)
    least_s = (
        counters.decode_tokens / best_rate + counters.prefill_tokens / table.prefill_tokens_per_s
    )
    return DeviceStats(
        table=table.name,
        label=table.label,
        steps=counters.steps,
        prefill_tokens=counters.prefill_tokens,
        decode_tokens=counters.decode_tokens,
        running=batch.num_running,
        waiting=batch.num_waiting,
        busy_s=counters.busy_s,
        window_s=window_s,
        decode_tokens_per_s=counters.decode_tokens / window_s if window_s > 0 else 0.0,
        max_decode_tokens_per_s=best_rate,
        utilisation=least_s / window_s if window_s > 0 else 0.0,
    )

"""An explanation ends with what has run: engines, their steps, and what waited for them."""

from __future__ import annotations

from rag_accel.accelerator import Accelerator
from rag_accel.interception.explanation import engine_lines


def test_only_engines_that_have_run_are_listed() -> None:
    with Accelerator() as accelerator:
        fill(accelerator)
        lines = [*engine_lines(accelerator)]
    assert lines == [
        "a#1: 6 items in 3 steps of 2 ms, waited 500 ms",
        "b: 6 items in 3 steps of 2 ms, 2 failed",
    ]


def fill(accelerator: Accelerator) -> None:
    metrics = accelerator.metrics
    metrics.counter("engines", "idle", "items")
    metrics.histogram("engines", "idle", "step_s")
    for name, failures in (("a#1", 0), ("b", 2)):
        metrics.counter("engines", name, "items").add(6)
        metrics.counter("engines", name, "failures").add(failures)
        metrics.histogram("engines", name, "step_s").observe(0.002, 3)
        metrics.histogram("engines", name, "queue_wait_s")
    metrics.histogram("engines", "a#1", "queue_wait_s").observe(0.5)

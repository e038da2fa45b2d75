"""Write loads of mixed workflows as rows."""

from __future__ import annotations

from bench.research.mixed.expected import Expected
from bench.research.mixed.load import MixedLoad
from bench.results import Row, row_of


def load_rows(system: str, workload: str, load: MixedLoad, expected: Expected) -> list[Row]:
    """Return latencies, both utilisations, how many were given up, and what was answered."""
    n = len(load.latency_s)
    figures = {
        "p95_latency_s": load.p95_s,
        "unserved": load.unserved,
        "cpu_utilisation": load.cpu_utilisation,
        "device_utilisation": load.device_utilisation,
    }
    return [
        row_of(system, workload, "latency_s", load.latency_s),
        *(Row(system, workload, metric, value, None, n) for metric, value in figures.items()),
        *_answer_rows(system, workload, load, expected),
    ]


def _answer_rows(system: str, workload: str, load: MixedLoad, expected: Expected) -> list[Row]:
    found, n = expected.compare(load.answers), len(load.answers)
    counts = {
        "identical_ids": found.identical_ids,
        "different_ids": found.different_ids,
        "identical_texts": found.identical_texts,
    }
    return [Row(system, workload, metric, count, None, n) for metric, count in counts.items()]

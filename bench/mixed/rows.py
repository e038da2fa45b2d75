"""Write loads of mixed workflows as rows."""

from __future__ import annotations

from bench.mixed.load import MixedLoad
from bench.results import Row, row_of


def load_rows(system: str, workload: str, load: MixedLoad) -> list[Row]:
    """Return latencies, both utilisations and how many were given up."""
    n = len(load.latency_s)
    figures = {
        "p95_latency_s": load.p95_s,
        "unserved": load.unserved,
        "cpu_utilisation": load.cpu_utilisation,
        "device_utilisation": load.device_utilisation,
    }
    return [
        row_of(system, workload, "latency_s", load.latency_s),
        *_search_rows(system, workload, load),
        *(Row(system, workload, metric, value, None, n) for metric, value in figures.items()),
    ]


def unloaded_rows(system: str, setting: str, load: MixedLoad) -> list[Row]:
    """Return the same, and what of a mean request is generation: all but its searches."""
    workload, n = f"{setting}, unloaded", len(load.latency_s)
    rest_s = (sum(load.latency_s) - sum(load.search_s)) / n
    return [
        *load_rows(system, workload, load),
        Row(system, workload, "mean_generation_ms", 1000 * rest_s, None, n),
        Row(system, workload, "searches_per_request", len(load.search_s) / n, None, n),
    ]


def same_rows(system: str, setting: str, load: MixedLoad, plain: MixedLoad) -> list[Row]:
    """Count the requests that both served and that ended with equal ids, and with equal texts."""
    workload = f"{setting}, unloaded"
    both = [
        (answer, plain.answers[number])
        for number, answer in load.answers.items()
        if number in plain.answers
    ]
    counts = {
        "identical_ids": sum(one.ids == other.ids for one, other in both),
        "identical_texts": sum(one.text == other.text for one, other in both),
    }
    return [
        Row(system, workload, metric, count, None, len(both)) for metric, count in counts.items()
    ]


def _search_rows(system: str, workload: str, load: MixedLoad) -> list[Row]:
    if not load.search_s:
        return []
    times = [1000 * seconds for seconds in load.search_s]
    mean = Row(system, workload, "mean_search_ms", 1000 * load.mean_search_s, None, len(times))
    return [row_of(system, workload, "search_ms", times), mean]

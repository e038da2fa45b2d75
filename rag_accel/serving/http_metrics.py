"""Counters and histograms in Prometheus' text format: the server's own and the accelerators'."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from rag_accel.telemetry import Metrics
from rag_accel.telemetry.metrics import HELD, HistogramSnapshot, Snapshot

if TYPE_CHECKING:
    from rag_accel.accelerator import Accelerator

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_UNFIT = re.compile(r"[^a-zA-Z0-9_]")


class HTTPMetrics:
    """Requests by route, status and tenant; those under way, and of them those given up."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metrics] = {}
        self.in_flight: Counter[str] = Counter()
        self.abandoned: Counter[str] = Counter()

    def begin(self, namespace: str) -> None:
        """Count a request as under way."""
        self.in_flight[namespace] += 1

    def end(self, namespace: str, route: str, status: int, duration_s: float) -> None:
        """Count a request as answered, or as given up; its threads may still run."""
        self.abandoned[namespace] += 1
        cells = self._metrics.setdefault(namespace, Metrics())
        cells.counter("requests", route, str(status)).add()
        cells.histogram("request_s", route).observe(duration_s)

    def leave(self, namespace: str) -> None:
        """Count a request that has ended as no longer under way, as its threads have ended too."""
        self.in_flight[namespace] -= 1
        self.abandoned[namespace] -= 1

    def forget(self, namespace: str) -> None:
        """Drop the counts of a tenant."""
        for counts in (self._metrics, self.in_flight, self.abandoned):
            counts.pop(namespace, None)

    def snapshot(self, namespace: str) -> Snapshot:
        """Return the counts of a tenant."""
        cells = self._metrics.get(namespace)
        return {} if cells is None else cells.snapshot()


class _Families(Collector):
    """The values of one tenant as Prometheus' families."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._by_name: dict[str, Any] = {}

    def collect(self) -> Iterator[Any]:
        yield from self._by_name.values()

    def add(
        self,
        name: str,
        value: int | HistogramSnapshot,
        kind: Any = CounterMetricFamily,
        **more: str,
    ) -> None:
        """Add a value to the family of its name; ``more`` are labels besides the tenant's."""
        labels, given = {"namespace": self._namespace, **more}, [value]
        if not isinstance(value, int):
            kind, name = HistogramMetricFamily, re.sub("_s$", "_seconds", name)
            bounds = [*(f"{bound:g}" for bound in value["bounds"]), "+Inf"]
            given = [list(zip(bounds, accumulate(value["counts"]), strict=True)), value["sum"]]
        full = f"rag_accel_{_UNFIT.sub('_', name)}"
        if full not in self._by_name:
            text = name.replace("_", " ").capitalize() + "."
            self._by_name[full] = kind(full, text, labels=list(labels))
        self._by_name[full].add_metric(list(labels.values()), *given)

    def add_waiting(self, count: int) -> None:
        name = "rag_accel_http_requests_waiting"
        self._by_name[name] = GaugeMetricFamily(name, "Requests that wait for a place.", count)


def metrics_text(
    http: HTTPMetrics, waiting: int, accelerator: Accelerator | None, namespace: str
) -> bytes:
    """Return in the text format what a tenant may see: its requests and its accelerator's values.

    Args:
        http: the server's counts.
        waiting: requests that wait for a place.
        accelerator: schedules the tenant's work; None if nothing does.
        namespace: the tenant.
    """
    families = _Families(namespace)
    families.add("http_requests_in_flight", http.in_flight[namespace], GaugeMetricFamily)
    families.add("http_requests_abandoned", http.abandoned[namespace], GaugeMetricFamily)
    counts = http.snapshot(namespace)
    for (route, status), count in _leaves(counts.get("requests", {})):
        families.add("http_requests", count, route=route, status=status)
    for (route,), histogram in _leaves(counts.get("request_s", {})):
        families.add("http_request_s", histogram, route=route)
    values = {} if accelerator is None else accelerator.metrics.snapshot()
    for top, branch in values.items():
        for path, value in _leaves(branch):
            is_engine = top == "engines"
            name = f"engine_{path[1]}" if is_engine else top
            label = {"engine": path[0]} if is_engine else {"path": "/".join(path)}
            kind = GaugeMetricFamily if name.endswith(HELD) else CounterMetricFamily
            families.add(name, value, kind, **label)
    families.add_waiting(waiting)
    return generate_latest(families)


def _leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the cells of a snapshot with their paths, in the order of the paths."""
    if not isinstance(tree, dict) or "counts" in tree:
        yield path, tree
        return
    for name, branch in sorted(cast("dict[str, Any]", tree).items()):
        yield from _leaves(branch, (*path, name))

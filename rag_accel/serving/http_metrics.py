"""Counters and histograms in Prometheus' text format: the server's own and the accelerators'."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily

from rag_accel.telemetry import Metrics
from rag_accel.telemetry.metrics import Snapshot
from rag_accel.telemetry.prometheus import Families, cells_of

if TYPE_CHECKING:
    from rag_accel.accelerator import Accelerator

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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
    families = Families()
    at = {"namespace": namespace}
    families.add("http_requests_in_flight", http.in_flight[namespace], GaugeMetricFamily, **at)
    families.add("http_requests_abandoned", http.abandoned[namespace], GaugeMetricFamily, **at)
    counts = http.snapshot(namespace)
    for (route, status), count in cells_of(counts.get("requests", {})):
        families.add("http_requests", count, **at, route=route, status=status)
    for (route,), histogram in cells_of(counts.get("request_s", {})):
        families.add("http_request_s", histogram, **at, route=route)
    if accelerator is not None:
        families.add_all(accelerator.metrics.snapshot(), namespace)
    families.add("http_requests_waiting", waiting, GaugeMetricFamily)
    return generate_latest(families)

"""Counters and histograms in Prometheus' text format: the server's own and the accelerators'."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from rag_accel.telemetry import Metrics
from rag_accel.telemetry.metrics import HELD, HistogramSnapshot, Snapshot

if TYPE_CHECKING:
    from rag_accel.accelerator import Accelerator

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ENGINES = "engines"
_UNFIT = re.compile(r"[^a-zA-Z0-9_]")
Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


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


class ServingCollector(Collector):
    """All values that one reader may see, as Prometheus' families.

    Args:
        http: the server's counts.
        waiting: requests that wait for a place.
        accelerators: by tenant, those whose values are shown.
        namespaces: the tenants whose counts are shown.
    """

    def __init__(
        self,
        http: HTTPMetrics,
        waiting: int,
        accelerators: Mapping[str, Accelerator],
        namespaces: tuple[str, ...],
    ) -> None:
        self._http, self._waiting = http, waiting
        self._accelerators, self._namespaces = accelerators, namespaces

    def text(self) -> bytes:
        """Return the values in the text format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def describe(self) -> list[Any]:
        """Return nothing: names are known once there are values."""
        return []

    def collect(self) -> Iterator[Family]:
        """Yield the families."""
        families: dict[str, Family] = {}
        for name in self._namespaces:
            self._collect_http(families, name)
        for name, accelerator in self._accelerators.items():
            for top, branch in accelerator.metrics.snapshot().items():
                _collect(families, top, branch, name)
        yield from families.values()
        waiting = GaugeMetricFamily(
            "rag_accel_http_requests_waiting", "Requests that wait for a place."
        )
        waiting.add_metric([], self._waiting)
        yield waiting

    def _collect_http(self, families: dict[str, Family], name: str) -> None:
        under_way = _gauge(families, "http_requests_in_flight", ["namespace"])
        under_way.add_metric([name], self._http.in_flight[name])
        abandoned = _gauge(families, "http_requests_abandoned", ["namespace"])
        abandoned.add_metric([name], self._http.abandoned[name])
        found = self._http.snapshot(name)
        for route, by_status in _branches(found.get("requests", {})):
            for status, count in _branches(by_status):
                counter = _counter(families, "http_requests", ["namespace", "route", "status"])
                counter.add_metric([name, route, status], cast("int", count))
        for route, histogram in _branches(found.get("request_s", {})):
            _histogram(
                families,
                "http_request_seconds",
                {"namespace": name, "route": route},
                cast("HistogramSnapshot", histogram),
            )


def _collect(families: dict[str, Family], top: str, branch: Any, namespace: str) -> None:
    """Add what an accelerator counts: by engine, or by path."""
    if top == _ENGINES:
        for engine, cells in _branches(branch):
            for cell, value in _branches(cells):
                labels = {"namespace": namespace, "engine": engine}
                _add(families, f"engine_{cell}", labels, value)
        return
    for path, value in _leaves(branch):
        _add(families, top, {"namespace": namespace, "path": path}, value)


def _add(families: dict[str, Family], name: str, labels: dict[str, str], value: Any) -> None:
    if not isinstance(value, int):
        seconds = f"{name[:-2]}_seconds" if name.endswith("_s") else name
        _histogram(families, seconds, labels, value)
    elif name.endswith(HELD):
        _gauge(families, name, list(labels)).add_metric(list(labels.values()), value)
    else:
        _counter(families, name, list(labels)).add_metric(list(labels.values()), value)


def _histogram(
    families: dict[str, Family], name: str, labels: dict[str, str], value: HistogramSnapshot
) -> None:
    full = _full(name)
    family = families.get(full)
    if family is None:
        family = families[full] = HistogramMetricFamily(full, _help(name), labels=list(labels))
    total, buckets = 0, list[Any]()
    bounds = [*(f"{bound:g}" for bound in value["bounds"]), "+Inf"]
    for bound, count in zip(bounds, value["counts"], strict=True):
        total += count
        buckets.append((bound, total))
    cast("HistogramMetricFamily", family).add_metric(list(labels.values()), buckets, value["sum"])


def _counter(families: dict[str, Family], name: str, labels: list[str]) -> CounterMetricFamily:
    full = _full(name)
    if full not in families:
        families[full] = CounterMetricFamily(full, _help(name), labels=labels)
    return cast("CounterMetricFamily", families[full])


def _gauge(families: dict[str, Family], name: str, labels: list[str]) -> GaugeMetricFamily:
    full = _full(name)
    if full not in families:
        families[full] = GaugeMetricFamily(full, _help(name), labels=labels)
    return cast("GaugeMetricFamily", families[full])


def _full(name: str) -> str:
    return f"rag_accel_{_UNFIT.sub('_', name)}"


def _help(name: str) -> str:
    return name.replace("_", " ").capitalize() + "."


def _branches(tree: Any) -> Iterator[tuple[str, Any]]:
    yield from sorted(cast("dict[str, Any]", tree).items())


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, dict) or "counts" in tree:
        yield path, tree
        return
    for name, branch in _branches(tree):
        yield from _leaves(branch, f"{path}/{name}" if path else name)

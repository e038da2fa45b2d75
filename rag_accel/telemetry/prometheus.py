"""The figures of accelerators for Prometheus: ``register(accelerator)`` in a service of its own.

Every name begins with ``rag_accel_``; a label ``namespace`` tells accelerators apart. Counters and
histograms of an engine have a label ``engine``, others one ``path``.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

from rag_accel.errors import ConfigError
from rag_accel.telemetry.metrics import HELD, HistogramSnapshot, Metrics, Snapshot

try:
    from prometheus_client import REGISTRY
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        "figures for Prometheus need prometheus_client: pip install 'rag-accel[prometheus]'",
        name=error.name,
    ) from error

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_UNFIT = re.compile(r"[^a-zA-Z0-9_]")


class Families(Collector):
    """Values of several namespaces as families of Prometheus."""

    def __init__(self) -> None:
        self._by_name: dict[str, Any] = {}

    def collect(self) -> Iterator[Any]:
        """Yield the families."""
        yield from self._by_name.values()

    def add(
        self,
        name: str,
        value: int | HistogramSnapshot,
        kind: Any = CounterMetricFamily,
        **labels: str,
    ) -> None:
        """Add a value to the family of its name."""
        given: list[Any] = [value]
        if not isinstance(value, int):
            kind, name = HistogramMetricFamily, re.sub("_s$", "_seconds", name)
            bounds = [*(f"{bound:g}" for bound in value["bounds"]), "+Inf"]
            given = [list(zip(bounds, accumulate(value["counts"]), strict=True)), value["sum"]]
        full = f"rag_accel_{_UNFIT.sub('_', name)}"
        if full not in self._by_name:
            text = name.replace("_", " ").capitalize() + "."
            self._by_name[full] = kind(full, text, labels=list(labels))
        self._by_name[full].add_metric(list(labels.values()), *given)

    def add_all(self, values: Snapshot, namespace: str) -> None:
        """Add the values of an accelerator."""
        for top, branch in values.items():
            for path, value in cells_of(branch):
                is_engine = top == "engines"
                name = f"engine_{path[1]}" if is_engine else top
                label = {"engine": path[0]} if is_engine else {"path": "/".join(path)}
                kind = GaugeMetricFamily if name.endswith(HELD) else CounterMetricFamily
                self.add(name, value, kind, namespace=namespace, **label)


class AcceleratorCollector(Collector):
    """A collector of the figures of accelerators, which it does not keep open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._accelerators: dict[str, weakref.ref[Any]] = {}

    def add(self, accelerator: Any, namespace: str) -> None:
        """Collect an accelerator, too.

        Raises:
            ConfigError: if one with its namespace is there already, or it is no accelerator.
        """
        if not isinstance(getattr(accelerator, "metrics", None), Metrics):
            raise ConfigError(
                "this has no figures to collect",
                where="register",
                found=type(accelerator).__name__,
                valid="an Accelerator",
            )
        with self._lock:
            known = self._accelerators.get(namespace)
            if known is not None and known() is not None:
                raise ConfigError(
                    "an accelerator is registered already",
                    where=f"namespace {namespace!r}",
                    valid="one accelerator for each namespace of a registry",
                    hint="register it once, or give another one register(..., namespace=...)",
                )
            self._accelerators[namespace] = weakref.ref(accelerator)

    def describe(self) -> list[Any]:
        """Return nothing: the names depend on the engines there will be."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield what the accelerators have counted."""
        families = Families()
        with self._lock:
            refs = list(self._accelerators.items())
        for namespace, ref in refs:
            if (accelerator := ref()) is not None:
                families.add_all(accelerator.metrics.snapshot(), namespace)
        yield from families.collect()


_registering = threading.Lock()
_collectors: weakref.WeakKeyDictionary[Any, AcceleratorCollector] = weakref.WeakKeyDictionary()


def register(
    accelerator: Any, registry: CollectorRegistry = REGISTRY, *, namespace: str | None = None
) -> AcceleratorCollector:
    """Have a registry collect the figures of an accelerator; return what collects them.

    Args:
        accelerator: an ``Accelerator``; it is collected until it is garbage.
        registry: by default the process's.
        namespace: value of its label, by default its option of that name.

    Raises:
        ConfigError: if the registry has an accelerator of this namespace, or this is none.
    """
    if namespace is None:
        namespace = str(getattr(getattr(accelerator, "options", None), "namespace", ""))
    with _registering:
        collector = _collectors.get(registry)
        if collector is None:
            collector = AcceleratorCollector()
            registry.register(collector)
            _collectors[registry] = collector
        collector.add(accelerator, namespace)
    return collector


def cells_of(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the cells of a snapshot with their paths, in the order of the paths."""
    if not isinstance(tree, dict) or "counts" in tree:
        yield path, tree
        return
    for name, branch in sorted(cast("dict[str, Any]", tree).items()):
        yield from cells_of(branch, (*path, name))

"""Cost and savings of embedding on several devices: WindVE 3.1 and 3.2, Equations 7 to 11.

A device is a line: a batch of ``C`` texts takes ``alpha * C + beta`` seconds (Equation 12), fitted
to what was measured (``fit_latency``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import floor, inf, isfinite

from rag_accel.engine_api import (
    LatencyModel,
)
from rag_accel.engine_api.line_fit import LineFit
from rag_accel.errors import ConfigError

SIZES = (1, 2, 4, 8, 16, 32, 64)


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


MOST_DEPTH = 1 << 20
"""The depth of a device whose steps take no longer with more texts."""

_ROUNDING = 1e-9


def depth_within(line: LatencyModel, slo_s: float) -> int:
    """Return the most texts that one batch may have and still end in time (Equations 7 to 10).

    0 for a device that is too slow even for one text: it is of no use (Equation 11). At most
    ``MOST_DEPTH``.
    """
    if line.predict_s(1) > slo_s + _ROUNDING:
        return 0
    if line.per_item_s * MOST_DEPTH <= slo_s - line.base_s:
        return MOST_DEPTH
    return floor((slo_s - line.base_s) / line.per_item_s + _ROUNDING)


@dataclass(frozen=True, slots=True)
class DeviceDemand:
    """The load of a deployment.

    Args:
        mean_rate: texts a second in the mean, N.
        peak: texts that come at once at the peak, N_peak.
        devices: of one instance, D.
        price: of one device, P.

    Raises:
        ConfigError: a number below 0, or none at all.
    """

    mean_rate: float
    peak: float
    devices: int = 1
    price: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            number = getattr(self, field.name)
            if not (isfinite(number) and number >= 0.0):
                raise ConfigError(
                    "a demand is no number of texts or devices",
                    where=f"demand, {field.name}",
                    found=f"{number:g}",
                    valid="a number from 0",
                )


@dataclass(frozen=True, slots=True)
class DeviceCapacity:
    """The concurrency and throughput of some devices within a latency limit.

    Args:
        concurrency: texts that may come at once, C.
        throughput: texts a second, in batches of that many, T.
    """

    concurrency: int
    throughput: float

    def cost_by_mean(self, demand: DeviceDemand) -> float:
        """Return the price of enough instances for the mean rate: ``N / T * D * P``."""
        return _quotient(demand.mean_rate, self.throughput) * demand.devices * demand.price

    def cost_by_peak(self, demand: DeviceDemand) -> float:
        """Return the price of enough instances for the peak: ``N_peak / C * D * P``."""
        return _quotient(demand.peak, self.concurrency) * demand.devices * demand.price


@dataclass(frozen=True, slots=True)
class DeviceSavings:
    """The savings of further devices, there already, over the first one.

    Args:
        alone: the first device.
        together: all of them.
        saved_by_peak: share of the cost by peak that they save, ``C_cpu / (C_cpu + C_npu)``.
        saved_by_mean: how much more they take, as a share of what the first takes, ``C_cpu /
            C_npu``: the most that can be saved where the mean counts.
        burst_bound: most that all take at once / what the first does, in parts of texts; nothing
            that keeps the limit does better.
    """

    alone: DeviceCapacity
    together: DeviceCapacity
    saved_by_peak: float
    saved_by_mean: float
    burst_bound: float


def capacity_of(lines: Sequence[LatencyModel], slo_s: float) -> DeviceCapacity:
    """Return the capacity of devices if each batch ends within ``slo_s`` seconds."""
    depths = [depth_within(line, slo_s) for line in lines]
    used = [(line, depth) for line, depth in zip(lines, depths, strict=True) if depth]
    rate = sum(_quotient(depth, line.predict_s(depth)) for line, depth in used)
    return DeviceCapacity(sum(depths), rate)


def savings_of(lines: Sequence[LatencyModel], slo_s: float) -> DeviceSavings:
    """Return the savings of the devices after the first one.

    Raises:
        ConfigError: no device.
    """
    if not lines:
        raise ConfigError("no device was measured", valid="one line or more")
    alone, together = capacity_of(lines[:1], slo_s), capacity_of(lines, slo_s)
    more = together.concurrency - alone.concurrency
    parts = [_parts_within(line, slo_s) for line in lines]
    return DeviceSavings(
        alone,
        together,
        saved_by_peak=_quotient(more, together.concurrency),
        saved_by_mean=_quotient(more, alone.concurrency),
        burst_bound=_quotient(sum(parts), parts[0]),
    )


def _parts_within(line: LatencyModel, slo_s: float) -> float:
    """Return how many texts a batch in time has, if texts had parts."""
    if not depth_within(line, slo_s):
        return 0.0
    most = MOST_DEPTH * line.per_item_s
    return MOST_DEPTH if most <= slo_s - line.base_s else (slo_s - line.base_s) / line.per_item_s


def _quotient(above: float, below: float) -> float:
    if below > 0.0:
        return above / below
    return inf if above else 0.0

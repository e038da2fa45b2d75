"""Measured costs of each embedder of a list, and what those after the first save.

WindVE 3.1 and 3.2, Equations 7 to 11: a device is a line, on which a batch of ``C`` texts takes
``alpha * C + beta`` seconds (Equation 12), fitted to what was measured (``fit_latency``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from itertools import count, cycle, islice
from math import floor, inf, isfinite
from typing import TYPE_CHECKING, Any

from rag_accel.accelerator.listed_members import listed_members
from rag_accel.clock import Clock, MonotonicClock
from rag_accel.config import Options
from rag_accel.engine_api import (
    LatencyModel,
)
from rag_accel.engine_api.line_fit import LineFit
from rag_accel.errors import ConfigError

if TYPE_CHECKING:
    from rag_accel.engines.devices.joining import Joined


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


REPEATS = 3
"""Runs of each size, of which the fastest counts."""

LONGEST_RUN_S = 10.0
"""No larger batch is tried after one that takes longer."""

COMPILE_S = 300.0
"""How long the compilation of a model on this machine is waited for."""

_WORDS = ["vector", "data", "river", "work", "index", "book", "garden", "key", "bridge", "winter"]
_NUM_WORDS = 72  # about 75 tokens of most models, the length that WindVE was measured with


@dataclass(frozen=True, slots=True)
class MeasuredMember:
    """The measured cost of one member while the others are idle.

    Args:
        name: what it is called.
        latency: the fitted line over texts (WindVE 4.2.2, Equation 12).
        depth: most texts of a batch that ends in time; 0 if not even one does.
        vectors: how near its vectors are to the first member's, in words.
        shares: the member before it that computes on the same cores, if any: it adds nothing.
    """

    name: str
    latency: LatencyModel
    depth: int
    vectors: str
    shares: str | None = None


@dataclass(frozen=True, slots=True)
class MeasuredMembers:
    """The costs and savings of all members of a list (WindVE 3.1 and 3.2, Equations 1 to 11).

    Args:
        slo_s: by when a batch has to end, in seconds.
        characters: of the texts measured with, in the mean.
        members: those that take part, most preferred first.
        excluded: why each of the others does not, by name.
        savings: what those after the first save.
        demand: texts a second in the mean and at once at the peak, if the user said.
    """

    slo_s: float
    characters: float
    members: tuple[MeasuredMember, ...]
    excluded: dict[str, str]
    savings: DeviceSavings
    demand: DeviceDemand | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; None stands for a ratio to nothing."""
        found: dict[str, Any] = {
            "slo_s": self.slo_s,
            "characters_per_text": self.characters,
            "members": [_described(member) for member in self.members],
            "excluded": self.excluded,
            **_finite(asdict(self.savings)),
        }
        if self.demand is not None:
            found["demand"] = {
                "mean_texts_per_s": self.demand.mean_rate,
                "peak_texts": self.demand.peak,
                **{
                    way: _finite(
                        {
                            "instances_by_mean": capacity.cost_by_mean(self.demand),
                            "instances_by_peak": capacity.cost_by_peak(self.demand),
                        }
                    )
                    for way, capacity in self._ways()
                },
            }
        return found

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _ways(self) -> tuple[tuple[str, DeviceCapacity], ...]:
        return ("alone", self.savings.alone), ("together", self.savings.together)

    def _lines(self) -> Iterator[str]:
        yield f"embedders, each measured alone with texts of {self.characters:.0f} characters:"
        for member in self.members:
            line = member.latency
            depth = f"{member.depth} texts" if member.depth else "no text: of no use"
            yield (
                f"  {member.name:<24}{line.base_s * 1e3:.1f} ms + {line.per_item_s * 1e3:.2f} ms a "
                f"text; in {self.slo_s:g} s {depth}; {member.vectors}"
                + (f"; not counted, on the cores of {member.shares}" if member.shares else "")
            )
        for name, reason in self.excluded.items():
            yield f"  {name:<24}stays out: {reason}"
        for way, capacity in self._ways():
            yield (
                f"{way}: {capacity.concurrency} texts at once, {capacity.throughput:.1f} texts/s "
                "in such batches"
            )
        yield _verdict(self.savings, sum(not member.shares for member in self.members))
        if self.demand is not None:
            for way, capacity in self._ways():
                yield (
                    f"{way}, instances for {self.demand.mean_rate:g} texts/s: "
                    f"{capacity.cost_by_mean(self.demand):.2f}; for {self.demand.peak:g} at once: "
                    f"{capacity.cost_by_peak(self.demand):.2f}"
                )


def measure_members(
    given: Sequence[Any],
    options: Options,
    cores: int,
    *,
    slo_s: float,
    texts: Sequence[str] = (),
    demand: DeviceDemand | None = None,
    clock: Clock | None = None,
) -> MeasuredMembers:
    """Measure the embedders of a list one after the other; all of them are closed then.

    Args:
        given: as of ``Accelerator(embedder=[...])``, most preferred first.
        options: ``member_tolerance``, ``reproducible`` and limits.
        cores: threads that members here may use.
        slo_s: by when a batch has to end, in seconds.
        texts: what to measure with, as long as real ones; by default of about 75 tokens.
        demand: texts a second in the mean and at once at the peak, of all members together.
        clock: measures.

    Raises:
        ConfigError: a limit that is no time, or what ``Accelerator(embedder=...)`` refuses.
        Exception: what a member raised that had taken the probes.
    """
    from rag_accel.engines.devices.joining import MemberProber, close
    from rag_accel.engines.embedding.compiled_model import wait_until_compiled

    if not (isfinite(slo_s) and slo_s > 0.0):
        raise ConfigError("a limit is no time", found=f"{slo_s:g} s", valid="seconds above 0")
    clock = clock or MonotonicClock()
    with ExitStack() as closing:
        joining = MemberProber(clock, options.member_tolerance, cores).join(
            listed_members("embedder", given, options), reproducible=options.reproducible
        )
        for joined in joining.joined:
            closing.callback(close, joined.member)
        wait_until_compiled(COMPILE_S)  # what runs from then on is what counts
        known = texts or [" ".join(islice(cycle(_WORDS), _NUM_WORDS))]
        distinct = _distinct(known)
        here = next((each.spec.name for each in joining.joined if each.spec.max_threads), None)
        found = [
            _measured(each, _points(each, known, distinct, cores, clock), slo_s, here)
            for each in joining.joined
        ]
    return MeasuredMembers(
        slo_s,
        sum(map(len, known)) / len(known),
        tuple(found),
        dict(joining.excluded),
        savings_of([each.latency for each in found if not each.shares], slo_s),
        demand,
    )


def _measured(
    joined: Joined, points: Iterator[tuple[int, float]], slo_s: float, here: str | None
) -> MeasuredMember:
    latency = fit_latency(tuple(points))
    name = joined.spec.name
    return MeasuredMember(
        name,
        latency,
        depth_within(latency, slo_s),
        str(joined),
        here if joined.spec.max_threads and name != here else None,
    )


def _points(
    joined: Joined, texts: Sequence[str], some: Callable[[int], list[str]], cores: int, clock: Clock
) -> Iterator[tuple[int, float]]:
    """Yield pairs of texts and seconds: of calls that the member takes, at least of two sizes."""
    from rag_accel.engines.devices.fidelity import embedded

    member = joined.member
    threads = min(cores, member.max_threads)
    longest = max(map(member.estimate, texts))
    most = max(1, min(member.max_texts, member.max_tokens // longest))
    for size in [size for size in SIZES if size <= max(2, most)]:
        runs: list[float] = []
        for _ in range(REPEATS):
            given = some(size)
            began = clock.now()
            for at in range(0, size, most):
                embedded(member, given[at : at + most], "query", threads)
            runs.append(clock.now() - began)
        yield size, min(runs)
        if size > 1 and min(runs) > LONGEST_RUN_S:
            return


def _distinct(texts: Sequence[str]) -> Callable[[int], list[str]]:
    """Return a source of so many texts, none of them twice: members may cache vectors."""
    source = cycle(texts)
    numbers = count()

    def some(size: int) -> list[str]:
        return [f"{next(source)} {next(numbers)}" for _ in range(size)]

    return some


def _described(member: MeasuredMember) -> dict[str, Any]:
    return {
        "name": member.name,
        "base_s": member.latency.base_s,
        "per_text_s": member.latency.per_item_s,
        "depth": member.depth,
        "vectors": member.vectors,
        "shares_cores_with": member.shares,
    }


def _verdict(savings: DeviceSavings, members: int) -> str:
    if not savings.alone.concurrency:
        return "the first embedder ends not even one text in time: raise the limit, or list another"
    if members == 1:
        return "one embedder: nothing is saved by others"
    if not savings.saved_by_mean:
        return "the others save nothing within this limit"
    return (
        f"the others save {savings.saved_by_peak:.1%} of the cost by peak and at most "
        f"{savings.saved_by_mean:.1%} by mean; at once at most {savings.burst_bound:.2f} times "
        "what the first takes"
    )


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """Return values of which those that are infinite or no number are None."""
    return {
        name: _finite(value) if isinstance(value, dict) else (value if isfinite(value) else None)
        for name, value in values.items()
    }

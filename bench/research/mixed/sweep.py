"""Find the rate up to which a system keeps an objective; nothing here knows what it serves."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from rag_accel.errors import ConfigError

Meets = Callable[[float, int], Awaitable[bool]]
"""Runs a load of a rate, with the arrivals of a seed, and tells whether it met the objective."""


@dataclass(frozen=True, slots=True)
class Bracket:
    """A rate that keeps the objective and a higher one that does not, per second."""

    passes: float
    fails: float

    @property
    def middle(self) -> float:
        """Return the geometric mean of both."""
        return math.sqrt(self.passes * self.fails)

    def over(self, other: Bracket) -> Bracket:
        """Return the least and the most that this limit can be, as a multiple of another."""
        return Bracket(self.passes / other.fails, self.fails / other.passes)


async def find_limit(
    meets: Meets,
    start: float,
    *,
    growth: float = 1.5,
    precision: float = 0.05,
    probes: int = 12,
    seeds: int = 1,
) -> Bracket:
    """Return the limit, between the highest rate that meets the objective and the next that fails.

    From ``start`` the rate is multiplied, or divided, by ``growth`` until one rate meets the
    objective and a higher one does not; then the geometric mean of the two is tried, until they are
    within ``precision`` of each other or ``probes`` rates were tried. Then the arrivals of the
    other seeds are tried at both ends, where most of the seeds decide. An end that they overturn is
    looked for anew, between the rates that were tried already.

    Args:
        meets: runs a load; the search itself uses seed 0.
        start: the first rate, above 0.
        growth: above 1.
        precision: share by which the ends of the bracket may differ.
        probes: most rates to try; twice as many if until then none met the objective, or all did.
        seeds: loads at each end of the bracket.

    Raises:
        ConfigError: on a value outside its range, or if no rate, or every one, meets the objective.
    """
    if start <= 0 or growth <= 1 or precision <= 0 or probes < 1 or seeds < 1:
        raise ConfigError(
            "bad search for a limit",
            found=f"start {start}, growth {growth}, precision {precision}, probes {probes}, "
            f"seeds {seeds}",
            valid="a start and precision above 0, growth above 1, at least one probe and seed",
        )
    search = _Search(meets, seeds)
    await search.probe(start)
    while True:
        low, high = search.ends()
        tried = len(search.verdicts)
        is_bracketed = low > 0 and math.isfinite(high)
        if is_bracketed and (high <= low * (1 + precision) or tried >= probes):
            loose = next((rate for rate in (low, high) if rate not in search.settled), None)
            if loose is None:
                return Bracket(low, high)
            await search.settle(loose)
        elif tried >= 2 * probes:
            _raise_unbounded(low, high)
        else:
            await search.probe(_next(low, high, growth))


@dataclass(slots=True)
class _Search:
    """The rates that met the objective, and those of them all seeds were tried at."""

    meets: Meets
    seeds: int
    verdicts: dict[float, bool] = field(default_factory=dict[float, bool])
    settled: set[float] = field(default_factory=set[float])

    def ends(self) -> tuple[float, float]:
        """Return the lowest rate that fails and the highest below it that passes."""
        high = min((rate for rate, met in self.verdicts.items() if not met), default=math.inf)
        low = max((rate for rate, met in self.verdicts.items() if met and rate < high), default=0.0)
        return low, high

    async def probe(self, rate: float) -> None:
        self.verdicts[rate] = await self.meets(rate, 0)

    async def settle(self, rate: float) -> None:
        met = [self.verdicts[rate]]
        for seed in range(1, self.seeds):
            met.append(await self.meets(rate, seed))
        self.verdicts[rate] = 2 * sum(met) > len(met)
        self.settled.add(rate)


def _raise_unbounded(low: float, high: float) -> None:
    if not low:
        raise ConfigError("no rate meets the objective", found=f"{high:.3g} per second does not")
    raise ConfigError(
        "every rate meets the objective",
        found=f"{low:.3g} per second still does",
        hint="start higher, or allow more probes",
    )


def _next(low: float, high: float, growth: float) -> float:
    if not low:
        return high / growth
    return low * growth if math.isinf(high) else math.sqrt(low * high)

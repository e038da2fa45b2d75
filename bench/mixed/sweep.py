"""Find the highest rate at which a system keeps an objective; nothing here knows what it serves."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from rag_accel.errors import ConfigError

Meets = Callable[[float], Awaitable[bool]]


async def find_limit(
    meets: Meets, start: float, *, growth: float = 1.5, precision: float = 0.05, probes: int = 12
) -> float:
    """Return the highest tried rate that meets the objective.

    From ``start`` the rate is multiplied, or divided, by ``growth`` until one rate meets the
    objective and a higher one does not; then the geometric mean of the two is tried, until they are
    within ``precision`` of each other or ``probes`` rates were tried.

    Args:
        meets: runs a load of this rate and tells whether it met the objective.
        start: the first rate, above 0.
        growth: above 1.
        precision: share by which the returned rate may lie below one that fails.
        probes: most rates to try.

    Raises:
        ConfigError: on a value outside its range, or if no rate that was tried meets the objective.
    """
    if start <= 0 or growth <= 1 or precision <= 0 or probes < 1:
        raise ConfigError(
            "bad search for a limit",
            found=f"start {start}, growth {growth}, precision {precision}, probes {probes}",
            valid="a start and precision above 0, growth above 1, at least one probe",
        )
    low, high, rate = 0.0, math.inf, start
    for _ in range(probes):
        if await meets(rate):
            low = rate
        else:
            high = rate
        if high <= low * (1 + precision):
            break
        rate = _next(low, high, growth)
    if not low:
        raise ConfigError("no rate meets the objective", found=f"{high:.3g} per second does not")
    return low


def _next(low: float, high: float, growth: float) -> float:
    if not low:
        return high / growth
    return low * growth if math.isinf(high) else math.sqrt(low * high)

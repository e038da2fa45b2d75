"""What a system of queues takes within a limit: at once, for long, and when too much comes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence

from bench.devices.virtual import VirtualSystem, VirtualText, play
from rag_accel.engine_api import LatencyModel

TEXT_TOKENS = 75
"""Tokens of a text in the paper's measurements, and the unit of its lines."""

IN_TIME = 0.99
"""The share of texts that must end in time for a rate to count as sustained."""

_MEDIAN_LOG, _SIGMA_LOG = 3.9, 0.8  # of unequal lengths: median 49, 99th percentile 314 tokens
_SHORTEST, _LONGEST = 8, 512
_ROUNDING_S = 1e-9

MakeSystem = Callable[[], VirtualSystem]


def by_tokens(line: LatencyModel) -> LatencyModel:
    """Return a line over tokens for one over texts of ``TEXT_TOKENS``."""
    return LatencyModel(line.base_s, line.per_item_s / TEXT_TOKENS)


def burst(number: int) -> list[VirtualText]:
    """Return texts of equal length that come at once."""
    return [VirtualText(0.0, TEXT_TOKENS)] * number


def poisson(rate: float, duration_s: float, seed: int, unequal: bool) -> list[VirtualText]:
    """Return texts that come at random, ``rate`` a second in the mean.

    Args:
        rate: texts a second.
        duration_s: until when they come.
        seed: fixes times and lengths.
        unequal: whether lengths are drawn (log-normal) or ``TEXT_TOKENS``.
    """
    rng = random.Random(seed)
    texts: list[VirtualText] = []
    now = rng.expovariate(rate)
    while now <= duration_s:
        tokens = TEXT_TOKENS
        if unequal:
            drawn = round(rng.lognormvariate(_MEDIAN_LOG, _SIGMA_LOG))
            tokens = min(_LONGEST, max(_SHORTEST, drawn))
        texts.append(VirtualText(now, tokens))
        now += rng.expovariate(rate)
    return texts


def share_in_time(
    texts: Sequence[VirtualText], make: MakeSystem, lines: Sequence[LatencyModel], slo_s: float
) -> float:
    """Return the share of texts that end within the limit; a refused one does not."""
    seconds = play(texts, make(), lines)
    return sum(one is not None and one <= slo_s + _ROUNDING_S for one in seconds) / len(texts)


def largest_burst(make: MakeSystem, lines: Sequence[LatencyModel], slo_s: float, most: int) -> int:
    """Return how many texts may come at once so that all end in time, up to ``most``."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if share_in_time(burst(middle), make, lines, slo_s) == 1.0:
            low = middle
        else:
            high = middle - 1
    return low


def sustained_rate(
    make: MakeSystem,
    lines: Sequence[LatencyModel],
    slo_s: float,
    loads: Callable[[float], Iterable[Sequence[VirtualText]]],
    between: tuple[float, float],
    halvings: int,
) -> float:
    """Return the highest rate found at which ``IN_TIME`` of the texts end in time.

    Args:
        make: makes the system, anew for each load.
        lines: seconds of each device over tokens.
        slo_s: the limit.
        loads: makes the loads of a rate.
        between: two rates; the search halves their ratio.
        halvings: how often.
    """
    low, high = between
    for _ in range(halvings):
        middle = math.sqrt(low * high)
        shares = [share_in_time(texts, make, lines, slo_s) for texts in loads(middle)]
        if sum(shares) / len(shares) >= IN_TIME:
            low = middle
        else:
            high = middle
    return low

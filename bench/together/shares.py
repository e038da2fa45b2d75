"""What each mechanism is worth: by itself, and to the program that has all the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.measure import median
from bench.together.arms import EXACT, EXTRA, Mechanism, added_name, alone_name

#: The metric of rows that hold one of the two figures of a ``Worth``.
WORTH = "worth"

Times = Mapping[str, Sequence[float]]
"""Seconds of each arm, turn by turn."""


@dataclass(frozen=True, slots=True)
class Worth:
    """How many times faster requests are with a mechanism; below 1 they are slower.

    Args:
        alone: than with none of them: time of none / with it alone, median over turns.
        left_out: than with all of them but it: time without it / with all, median over turns.
    """

    alone: float
    left_out: float

    @property
    def log(self) -> float:
        """Return the logarithm of the geometric mean of both."""
        return (math.log(self.alone) + math.log(self.left_out)) / 2


def gain(times: Times, slow: str, fast: str) -> float:
    """Return the time of one arm / that of another, turn by turn: the median."""
    pairs = zip(times[slow], times[fast], strict=True)
    return median([one / other for one, other in pairs])


def worths(times: Times) -> dict[Mechanism, Worth]:
    """Return what each mechanism is worth; to one that is off by default, all others are all.

    Chunk reuse by itself is held against the local engine, which it needs.
    """
    found = {
        one: Worth(gain(times, "none", alone_name(one)), gain(times, added_name(one), "all"))
        for one in EXACT
    }
    for one in EXTRA:
        without = alone_name(Mechanism.LOCAL_ENGINE) if one is Mechanism.REUSE else "none"
        by_itself = gain(times, without, alone_name(one))
        found[one] = Worth(by_itself, gain(times, "all", added_name(one)))
    return found


def shares(found: Mapping[Mechanism, Worth]) -> dict[Mechanism, float]:
    """Return each exact mechanism's share of the gain of all.

    It is the logarithm of the geometric mean of what it is worth by itself and to all the others,
    of the sum of these. What makes requests slower has a share below 0.
    """
    total = sum(found[one].log for one in EXACT)
    return {one: found[one].log / total if total else 0.0 for one in EXACT}


def best_single(times: Times) -> str:
    """Return the arm of one exact mechanism that is fastest by its median."""
    names = [alone_name(one) for one in EXACT]
    return min(names, key=lambda name: median(times[name]))

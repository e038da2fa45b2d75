"""Run the same work with a mechanism on and off, in turn, and say what each gave."""

from __future__ import annotations

import gc
import logging
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.baselines.embedding_runtimes import SAME
from bench.measure import Pairs, median, ratios, rotate
from bench.paired import in_ms
from bench.results import Row, median_row, row_of

ON, OFF = "on", "off"
LATENCY = "latency_ms"
#: Of every arm. A machine that stands still for minutes is not an engine that hangs.
STEP_TIMEOUT_S = 3600.0

_logger = logging.getLogger("bench.ablation")


@dataclass(frozen=True, slots=True)
class Gave:
    """What one run of one arm gave: the measured figure, and every answer."""

    figure: float
    answers: Sequence[Any]


Arm = Callable[[int], Gave]
"""Does the work of a turn."""
Same = Callable[[Any, Any], bool]
"""Tells whether an answer is the one that the other arm gave."""


@dataclass(frozen=True, slots=True)
class Ablation:
    """What a mechanism was found to be worth in one regime.

    Args:
        mechanism: its name.
        regime: what it was measured on.
        metric: what was measured; more is better where it is a rate (``_per_s``), else less.
        figures: with the mechanism off (``plain``) and on (``other``), turn by turn.
        num_answers: answers of the arm with the mechanism on.
        num_different: those that are not what the other arm answered.
    """

    mechanism: str
    regime: str
    metric: str
    figures: Pairs[float]
    num_answers: int
    num_different: int

    @property
    def key(self) -> str:
        """Return the name of the ratio."""
        return f"{self.mechanism}_{self.regime}".replace(" ", "_")

    @property
    def gains(self) -> list[float]:
        """Return of each turn how many times as fast the work is with the mechanism as without."""
        found = ratios(self.figures)
        return found if self.metric.endswith("_per_s") else [1 / one for one in found]

    @property
    def gain(self) -> float:
        """Return their median."""
        return median(self.gains)

    def rows(self) -> list[Row]:
        """Return both arms, the gain, and how many answers differ."""
        workload = f"{self.mechanism}, {self.regime}"
        n, different = self.num_answers, self.num_different
        return [
            row_of(ON, workload, self.metric, self.figures.other),
            row_of(OFF, workload, self.metric, self.figures.plain),
            median_row(f"{ON} against {OFF}", workload, "gain", self.gains),
            Row(ON, workload, "different_answers", different, None, n),
        ]


def ablate(
    regime: str,
    metric: str,
    on: Arm,
    off: Mapping[str, Arm],
    turns: int,
    *,
    warm_up: int = 1,
    same: Same = operator.eq,
) -> list[Ablation]:
    """Measure mechanisms on one kind of work, all arms in turn.

    Args:
        regime: names the work.
        metric: names the figure.
        on: the arm with every mechanism on.
        off: by mechanism, the arm that lacks this one alone.
        turns: times that each arm runs.
        warm_up: times that it runs before, which do not count.
        same: compares an answer of ``on`` with that of the other arm.
    """
    arms = {ON: _swept(on), **{_arm_name(name): _swept(arm) for name, arm in off.items()}}
    rotate(arms, warm_up)
    found = rotate(arms, turns)
    return [compared(name, regime, metric, found[_arm_name(name)], found[ON], same) for name in off]


def compared(
    mechanism: str,
    regime: str,
    metric: str,
    off: Sequence[Gave],
    on: Sequence[Gave],
    same: Same = operator.eq,
) -> Ablation:
    """Return what the runs of two arms say; those of one place had the same work."""
    figures = Pairs(tuple(one.figure for one in off), tuple(one.figure for one in on))
    pairs = [
        pair
        for without, having in zip(off, on, strict=True)
        for pair in zip(without.answers, having.answers, strict=True)
    ]
    different = sum(not same(plain, other) for plain, other in pairs)
    found = Ablation(mechanism, regime, metric, figures, len(pairs), different)
    _logger.info("%s: %.3f", found.key, found.gain)
    return found


def same_vectors(one: Any, other: Any) -> bool:
    """Tell whether vectors differ by no more than two runtimes may."""
    return bool(np.max(np.abs(np.asarray(one) - np.asarray(other)), initial=0.0) <= SAME)


def timed_answers(work: Callable[[int], Sequence[Any]]) -> Arm:
    """Return the arm that does this work; its figure is the time it took, in ms."""

    def run(turn: int) -> Gave:
        started = time.perf_counter()
        answers = work(turn)
        return Gave(in_ms(time.perf_counter() - started), answers)

    return run


def under(switch: Callable[[], AbstractContextManager[None]], arm: Arm) -> Arm:
    """Return an arm that runs while something is switched off; switching is not timed."""

    def run(turn: int) -> Gave:
        with switch():
            return arm(turn)

    return run


def _swept(arm: Arm) -> Arm:
    """Return an arm that pays for nobody else's garbage."""

    def run(turn: int) -> Gave:
        gc.collect()
        return arm(turn)

    return run


def _arm_name(mechanism: str) -> str:
    return f"{OFF}: {mechanism}"

"""Time single calls of an object, plain and accelerated, in turn on one thread or one loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from bench.measure import (
    Interval,
    Pairs,
    alternate,
    alternate_async,
    differences,
    median,
    median_interval,
    ratios,
    timed,
    timed_async,
)
from bench.results import Row, median_row, row_of

#: The guarantee: a request is at most the larger of these slower where nothing helps.
LIMIT_SHARE, LIMIT_MS = 0.03, 0.5
#: Calls in a row of one arm. A program makes its calls one after the other: an arm whose cores and
#: caches the other one has just used, or left to sleep, would be measured in a state of its own.
BLOCK = 10

_logger = logging.getLogger("bench.paired")


@dataclass(frozen=True, slots=True)
class PairedTimes:
    """Hold the times of one workload, call by call, in ms."""

    workload: str
    times_ms: Pairs[float]

    @property
    def ratio(self) -> float:
        """Return accelerated / plain: the median over pairs."""
        return median(ratios(self.times_ms))

    @property
    def interval(self) -> Interval:
        """Return the 95 % interval of ``ratio``."""
        return median_interval(ratios(self.times_ms))

    @property
    def extra_ms(self) -> float:
        """Return accelerated - plain: the median over pairs."""
        return median(differences(self.times_ms))

    @property
    def share_of_limit(self) -> float:
        """Return how much of what the guarantee allows is used; at most 1 keeps it."""
        return self.extra_ms / max(LIMIT_SHARE * median(self.times_ms.plain), LIMIT_MS)

    def rows(self) -> list[Row]:
        """Return both arms, their difference, and their ratio with its interval."""
        interval, n = self.interval, len(self.times_ms.plain)
        ends = {
            "its 95 % interval from": interval.low,
            "to": interval.high,
        }
        return [
            row_of("plain", self.workload, "latency_ms", self.times_ms.plain),
            row_of("accelerated", self.workload, "latency_ms", self.times_ms.other),
            row_of("accelerated - plain", self.workload, "latency_ms", differences(self.times_ms)),
            median_row(
                "accelerated / plain", self.workload, "latency_ratio", ratios(self.times_ms)
            ),
            *(
                Row(system, self.workload, "latency_ratio", value, None, n)
                for system, value in ends.items()
            ),
        ]


def time_pairs(
    name: str,
    plain: Any,
    fast: Any,
    inputs: Sequence[Any],
    pairs: int,
    warm_up: int,
    around_plain: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[PairedTimes]:
    """Time ``invoke`` on this thread, then ``ainvoke`` on one loop; inputs take turns.

    ``around_plain`` gives the settings of the plain arm; entering and leaving is not timed.
    """
    arms = _Arms(plain, fast, inputs, around_plain)
    sync = alternate(arms.invoke_plain, timed(arms.invoke_fast), pairs, warm_up, BLOCK)
    coroutines = asyncio.run(
        alternate_async(arms.ainvoke_plain, timed_async(arms.ainvoke_fast), pairs, warm_up, BLOCK)
    )
    found = [
        PairedTimes(f"{name}, invoke", sync.map(in_ms)),
        PairedTimes(f"{name}, ainvoke", coroutines.map(in_ms)),
    ]
    for one in found:
        _logger.info("%s: %+.3f ms, x %.3f", one.workload, one.extra_ms, one.ratio)
    return found


@dataclass(frozen=True, slots=True)
class _Arms:
    plain: Any
    fast: Any
    inputs: Sequence[Any]
    around_plain: Callable[[], AbstractContextManager[None]]

    def invoke_plain(self, turn: int) -> float:
        with self.around_plain():
            return timed(lambda turn: self.plain.invoke(self._input(turn)))(turn)

    async def ainvoke_plain(self, turn: int) -> float:
        with self.around_plain():
            return await timed_async(lambda turn: self.plain.ainvoke(self._input(turn)))(turn)

    def invoke_fast(self, turn: int) -> Any:
        return self.fast.invoke(self._input(turn))

    async def ainvoke_fast(self, turn: int) -> Any:
        return await self.fast.ainvoke(self._input(turn))

    def _input(self, turn: int) -> Any:
        return self.inputs[turn % len(self.inputs)]


def in_ms(seconds: float) -> float:
    """Return milliseconds."""
    return 1000 * seconds

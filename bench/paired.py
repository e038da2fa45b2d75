"""Time single calls of an object, plain and accelerated, in turn on one thread or one loop."""

from __future__ import annotations

import asyncio
import logging
import operator
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from bench.measure import (
    Interval,
    Pairs,
    alternate,
    alternate_async,
    differences,
    estimate,
    median,
    median_interval,
    ratios,
)
from bench.results import Row, median_row, row_of

#: The guarantee: a request is at most the larger of these slower where nothing helps.
LIMIT_SHARE, LIMIT_MS = 0.03, 0.5
#: Calls in a row of one arm. A program makes its calls one after the other: an arm whose cores and
#: caches the other one has just used, or left to sleep, would be measured in a state of its own.
BLOCK = 10

Same = Callable[[Any, Any], bool]
"""Tells whether an accelerated answer is the plain one."""

_logger = logging.getLogger("bench.paired")


@dataclass(frozen=True, slots=True)
class PairedTimes:
    """The times of one workload, call by call, in ms.

    Args:
        workload: how rows name it.
        times_ms: of each call.
        num_different: pairs with different answers; None where nobody compared them here.
    """

    workload: str
    times_ms: Pairs[float]
    num_different: int | None = None

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

    def extra_each_ms(self, calls: int) -> float:
        """Return ``extra_ms`` of one of the calls of each time."""
        return estimate([extra / calls for extra in differences(self.times_ms)])

    @property
    def share_of_limit(self) -> float:
        """Return how much of what the guarantee allows is used; at most 1 keeps it."""
        return self.extra_ms / max(LIMIT_SHARE * median(self.times_ms.plain), LIMIT_MS)

    def rows(self) -> list[Row]:
        """Return both arms, their difference, their ratio with its interval, and wrong answers."""
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
            *self._answer_rows(),
        ]

    def _answer_rows(self) -> list[Row]:
        if self.num_different is None:
            return []
        n, metric = len(self.times_ms.plain), "different_answers"
        return [Row("accelerated", self.workload, metric, self.num_different, None, n)]


def one_user(
    times_ms: Mapping[str, Pairs[float]], short: Collection[str] = ()
) -> tuple[list[Row], dict[str, float]]:
    """Return what one caller's requests take, accelerated against plain, by program.

    Args:
        times_ms: of the requests of each program, pair by pair.
        short: the programs that take less than 2 ms plainly, of which a ratio says little.

    Returns:
        a row with the ratio and one with the difference for each program, medians over pairs; and
        the ratios ``one_user``, the worst of the programs that are not short (accepted: 1.03), and
        ``one_user_ms``, the worst of the short ones (accepted: 0.06), as far as there are any.
    """
    found = {name: PairedTimes(name, pairs) for name, pairs in times_ms.items()}
    rows = [
        median_row(system, one.workload, metric, values(one.times_ms))
        for one in found.values()
        for system, metric, values in (
            ("accelerated / plain", "one_user", ratios),
            ("accelerated - plain", "one_user_ms", differences),
        )
    ]
    worst = {
        "one_user": [one.ratio for name, one in found.items() if name not in short],
        "one_user_ms": [one.extra_ms for name, one in found.items() if name in short],
    }
    return rows, {name: max(each) for name, each in worst.items() if each}


def time_pairs(
    name: str,
    plain: Any,
    fast: Any,
    inputs: Sequence[Any],
    pairs: int,
    warm_up: int,
    around_plain: Callable[[], AbstractContextManager[None]] = nullcontext,
    same: Same = operator.eq,
) -> list[PairedTimes]:
    """Time ``invoke`` on this thread, then ``ainvoke`` on one loop; inputs take turns.

    ``around_plain`` gives the settings of the plain arm; entering and leaving is not timed. Answers
    are compared afterwards.
    """
    arms = _Arms(plain, fast, inputs, around_plain)
    sync = alternate(arms.invoke_plain, arms.invoke_fast, pairs, warm_up, BLOCK)
    coroutines = asyncio.run(
        alternate_async(arms.ainvoke_plain, arms.ainvoke_fast, pairs, warm_up, BLOCK)
    )
    found = [
        PairedTimes(f"{name}, {call}", calls.map(_ms), _num_different(calls, same))
        for call, calls in (("invoke", sync), ("ainvoke", coroutines))
    ]
    for one in found:
        _logger.info("%s: %+.3f ms, x %.3f", one.workload, one.extra_ms, one.ratio)
    return found


@dataclass(frozen=True, slots=True)
class _Call:
    seconds: float
    answer: Any


@dataclass(frozen=True, slots=True)
class _Arms:
    plain: Any
    fast: Any
    inputs: Sequence[Any]
    around_plain: Callable[[], AbstractContextManager[None]]

    def invoke_plain(self, turn: int) -> _Call:
        with self.around_plain():
            return self._invoke(self.plain, turn)

    async def ainvoke_plain(self, turn: int) -> _Call:
        with self.around_plain():
            return await self._ainvoke(self.plain, turn)

    def invoke_fast(self, turn: int) -> _Call:
        return self._invoke(self.fast, turn)

    async def ainvoke_fast(self, turn: int) -> _Call:
        return await self._ainvoke(self.fast, turn)

    def _invoke(self, runnable: Any, turn: int) -> _Call:
        asked = self._input(turn)
        started = time.perf_counter()
        answer = runnable.invoke(asked)
        return _Call(time.perf_counter() - started, answer)

    async def _ainvoke(self, runnable: Any, turn: int) -> _Call:
        asked = self._input(turn)
        started = time.perf_counter()
        answer = await runnable.ainvoke(asked)
        return _Call(time.perf_counter() - started, answer)

    def _input(self, turn: int) -> Any:
        return self.inputs[turn % len(self.inputs)]


def _num_different(calls: Pairs[_Call], same: Same) -> int:
    pairs = zip(calls.plain, calls.other, strict=True)
    return sum(not same(plain.answer, other.answer) for plain, other in pairs)


def _ms(call: _Call) -> float:
    return in_ms(call.seconds)


def in_ms(seconds: float) -> float:
    """Return milliseconds."""
    return 1000 * seconds

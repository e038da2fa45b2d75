"""Alternate two arms and summarise what was seen; nothing here knows what is measured.

Arms take turns (A B, B A, A B, ...), so that whatever changes slowly on the machine, or favours
the arm that goes first or second, meets both alike; ratios and differences are taken pair by pair.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from rag_accel.errors import ConfigError

T = TypeVar("T")
U = TypeVar("U")

CONFIDENCE = 0.95
#: The fewest values whose median has an interval: even the lowest and the highest of n values hold
#: the median between them with a probability of no more than 1 - 2 / 2 ** n.
MIN_FOR_INTERVAL = 6
_RESAMPLES = 2000
_SEED = 20_240


@dataclass(frozen=True, slots=True)
class Interval:
    """The two ends of a confidence interval."""

    low: float
    high: float


class Estimate(float):
    """A number with its 95 % interval within this process.

    It is a float like any other: ``min`` and ``max`` return it with its interval, and arithmetic
    returns a float without one.
    """

    interval: Interval

    def __new__(cls, value: float, interval: Interval) -> Estimate:
        """Make the number."""
        made = super().__new__(cls, value)
        made.interval = interval
        return made


@dataclass(frozen=True, slots=True)
class Pairs(Generic[T]):
    """What two arms gave, turn by turn; ``plain[i]`` and ``other[i]`` ran side by side."""

    plain: tuple[T, ...]
    other: tuple[T, ...]

    def map(self, fn: Callable[[T], U]) -> Pairs[U]:
        """Return the pairs of ``fn`` of each value."""
        return Pairs(tuple(map(fn, self.plain)), tuple(map(fn, self.other)))


def alternate(
    plain: Callable[[int], T],
    other: Callable[[int], T],
    repeats: int,
    warm_up: int = 0,
    block: int = 1,
) -> Pairs[T]:
    """Call both arms ``repeats`` times in turn, after ``warm_up`` calls of each that do not count.

    Each arm is called with the number of the turn, so that both do the same work in a pair. An arm
    has ``block`` turns in a row.
    """
    arms = (plain, other)
    found: tuple[list[T], list[T]] = ([], [])
    for turn in range(warm_up):
        for arm in _order(turn):
            arms[arm](turn)
    for arm, turn in _blocks(repeats, block):
        found[arm].append(arms[arm](turn))
    return Pairs(tuple(found[0]), tuple(found[1]))


async def alternate_async(
    plain: Callable[[int], Awaitable[T]],
    other: Callable[[int], Awaitable[T]],
    repeats: int,
    warm_up: int = 0,
    block: int = 1,
) -> Pairs[T]:
    """Do as ``alternate`` with coroutines, all on the running loop."""
    arms = (plain, other)
    found: tuple[list[T], list[T]] = ([], [])
    for turn in range(warm_up):
        for arm in _order(turn):
            await arms[arm](turn)
    for arm, turn in _blocks(repeats, block):
        found[arm].append(await arms[arm](turn))
    return Pairs(tuple(found[0]), tuple(found[1]))


def rotate(arms: Mapping[str, Callable[[int], T]], repeats: int) -> dict[str, list[T]]:
    """Call any number of arms ``repeats`` times in turn; each turn another one goes first.

    Returns:
        what each arm gave, turn by turn.
    """
    found: dict[str, list[T]] = {name: [] for name in arms}
    for turn in range(repeats):
        for name in _beginning_at(list(arms), turn):
            found[name].append(arms[name](turn))
    return found


async def rotate_async(
    arms: Mapping[str, Callable[[int], Awaitable[T]]], repeats: int, warm_up: int = 0
) -> dict[str, list[T]]:
    """Call any number of arms ``repeats`` times in turn; each turn another one goes first.

    Returns:
        what each arm gave, turn by turn, without the warm-up.
    """
    names = list(arms)
    found: dict[str, list[T]] = {name: [] for name in names}
    for turn in range(-warm_up, repeats):
        for name in _beginning_at(names, turn):
            value = await arms[name](turn)
            if turn >= 0:
                found[name].append(value)
    return found


def timed(fn: Callable[[int], Any]) -> Callable[[int], float]:
    """Return a version of ``fn`` that gives the seconds it took."""

    def seconds(turn: int) -> float:
        started = time.perf_counter()
        fn(turn)
        return time.perf_counter() - started

    return seconds


def timed_async(fn: Callable[[int], Awaitable[Any]]) -> Callable[[int], Awaitable[float]]:
    """Return a version of the coroutine function ``fn`` that gives the seconds it took."""

    async def seconds(turn: int) -> float:
        started = time.perf_counter()
        await fn(turn)
        return time.perf_counter() - started

    return seconds


def median(values: Sequence[float]) -> float:
    """Return the median.

    Raises:
        ConfigError: if there are no values.
    """
    _require(values)
    return statistics.median(values)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of the values do not exceed.

    Raises:
        ConfigError: if there are no values.
    """
    _require(values)
    return float(np.percentile(values, 100 * share, method="inverted_cdf"))


def ratios(pairs: Pairs[float]) -> list[float]:
    """Return other / plain of each pair."""
    return [other / plain for plain, other in zip(pairs.plain, pairs.other, strict=True)]


def differences(pairs: Pairs[float]) -> list[float]:
    """Return other - plain of each pair."""
    return [other - plain for plain, other in zip(pairs.plain, pairs.other, strict=True)]


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the bootstrap interval (percentile method, fixed seed) of the median of ``values``.

    Raises:
        ConfigError: if there are no values.
    """
    return _interval([values], confidence)


def estimate(*groups: Sequence[float]) -> float:
    """Return the mean of the groups' medians; the median, where there is one group.

    It is an ``Estimate``, with a bootstrap interval (percentile method, fixed seed), if each group
    has at least ``MIN_FOR_INTERVAL`` values.

    Raises:
        ConfigError: if there are no values.
    """
    middle = statistics.fmean(map(median, groups))
    if min(map(len, groups)) < MIN_FOR_INTERVAL:
        return middle
    return Estimate(middle, _interval(groups, CONFIDENCE))


def _interval(groups: Sequence[Sequence[float]], confidence: float) -> Interval:
    """Return the bootstrap interval of the mean of the groups' medians, each group resampled."""
    for values in groups:
        _require(values)
    data = [np.asarray(values, dtype=np.float64) for values in groups]
    random = np.random.default_rng(_SEED)
    # One resample at a time: all of them at once would be hundreds of megabytes.
    medians = [
        np.mean([np.median(one[random.integers(0, len(one), len(one))]) for one in data])
        for _ in range(_RESAMPLES)
    ]
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(medians, [tail, 100 - tail])
    return Interval(float(low), float(high))


def _blocks(repeats: int, block: int) -> Iterator[tuple[int, int]]:
    """Yield (arm, turn): each arm does ``block`` turns in a row, and both do every turn."""
    for start in range(0, repeats, block):
        for arm in _order(start // block):
            for turn in range(start, min(start + block, repeats)):
                yield arm, turn


def _beginning_at(names: Sequence[str], turn: int) -> list[str]:
    first = turn % len(names)
    return [*names[first:], *names[:first]]


def _order(turn: int) -> tuple[int, int]:
    return (1, 0) if turn % 2 else (0, 1)


def _require(values: Sequence[float]) -> None:
    if not values:
        raise ConfigError("nothing was measured", found="no values", valid="at least one")

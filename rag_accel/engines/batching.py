"""Micro-batches of texts of similar length, their limits, and the end of a step's time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rag_accel.clock import Clock
from rag_accel.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of what a model computes at once, in tokens (or in items where length is unknown).

    Args:
        batch: most tokens of one micro-batch, padding included; one longer text runs alone.
        padding: most tokens of padding in one micro-batch; about what a call costs by itself.
        step: about how many tokens one step takes, so that newcomers join soon.
    """

    batch: int
    padding: int
    step: int

    def __post_init__(self) -> None:
        for name, low in (("batch", 1), ("padding", 0), ("step", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < low:
                raise ConfigError(
                    "bad batch limit", where=name, found=repr(value), valid=f"an int from {low}"
                )


# Measured for MiniLM on two Zen 5 cores: time per token is lowest from 256 to 1024 padded tokens
# (0.14-0.16 ms on one thread, 0.08 ms on two) and a call by itself costs what 25 to 60 tokens do.
CPU_LIMITS = BatchLimits(batch=640, padding=48, step=4096)
# Not measured: an accelerator needs far larger batches to be busy.
ACCELERATOR_LIMITS = BatchLimits(batch=16_384, padding=4096, step=65_536)


def micro_batches(lengths: Sequence[int], limits: BatchLimits) -> list[list[int]]:
    """Return the indexes of ``lengths`` in micro-batches, shortest first; each index once."""
    batches: list[list[int]] = []
    total = 0
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        length = lengths[index]
        num = len(batches[-1]) if batches else 0
        # Sorted upwards, a newcomer sets the padded length of all before it.
        fits = (num + 1) * length <= limits.batch and num * length - total <= limits.padding
        if num and fits:
            batches[-1].append(index)
            total += length
        else:
            batches.append([index])
            total = length
    return batches


#: Texts of a micro-batch where the first run of each shape costs more. MiniLM, 20 tokens, ms of one
#: core a text: 7 of one, 4.5 of two, 4 of three to 21.
_SIZES = (64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)


def of_few_sizes(batches: Sequence[list[int]]) -> list[list[int]]:
    """Return micro-batches cut into sizes that come again, in the same order."""
    found: list[list[int]] = []
    for batch in batches:
        start = 0
        while left := len(batch) - start:
            size = next(size for size in _SIZES if size <= left)
            found.append(batch[start : start + size])
            start += size
    return found


def shared_limits(limits: BatchLimits, lengths: Sequence[int], parts: int) -> BatchLimits:
    """Return limits that cut ``lengths`` into at least about ``parts`` micro-batches.

    None is so small that most of its time is what a call costs by itself.
    """
    if parts <= 1 or not lengths:
        return limits
    count, mean = len(lengths), -(-sum(lengths) // len(lengths))
    each = -(-count // parts) * mean
    return replace(limits, batch=max(limits.padding, min(limits.batch, each)))


class StepDeadline:
    """The end of a step's time; the first piece may always start."""

    def __init__(self, clock: Clock, time_s: float | None) -> None:
        self._clock = clock
        self._end = None if time_s is None else clock.now() + time_s
        self._started = False

    def may_start(self) -> bool:
        """Tell whether one more piece may start, and count it as started."""
        if self._started and self._end is not None and self._clock.now() >= self._end:
            return False
        self._started = True
        return True

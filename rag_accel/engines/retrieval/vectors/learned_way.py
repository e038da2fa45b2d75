"""The faster of two ways to make a call, learned from the calls that are made."""

from __future__ import annotations

import time

from rag_accel.engine_api.line_fit import LineFit

#: calls between two tries of the slower way
_TRIED_EVERY = 64
#: first calls of a way, which start what it needs
_WARM_UP = 2
#: of a mean, what stays with each call
_KEPT = 7 / 8


class LearnedWay:
    """The learned times of calls made one of two ways. Used by one thread at a time."""

    def __init__(self) -> None:
        self._fits = {True: LineFit(_KEPT), False: LineFit(_KEPT)}
        self._num_noted = {True: 0, False: 0}
        self._num_calls = 0

    def choose(self, numbers: int) -> bool:
        """Return the way of a call whose two ways differ in how it reads so many numbers."""
        self._num_calls += 1
        one, other = self._expected_s(True, numbers), self._expected_s(False, numbers)
        if one is None or other is None:
            return one is None
        return (one < other) != (self._num_calls % _TRIED_EVERY == 0)

    def note(self, way: bool, numbers: int, started: float) -> None:
        """Learn from a call that has ended now."""
        self._num_noted[way] += 1
        if self._num_noted[way] > _WARM_UP:
            self._fits[way].add(numbers, time.perf_counter() - started)

    def _expected_s(self, way: bool, numbers: int) -> float | None:
        if self._num_noted[way] <= _WARM_UP:
            return None
        fit = self._fits[way]
        line = fit.line(0.0)
        return fit.mean_s if line is None else line.base_s + line.per_item_s * numbers

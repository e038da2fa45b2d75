"""The progress of a command on standard error."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from typing import Any, TypeAlias

#: A line stands for at least this share of all, unless so many seconds have passed since the last.
_LINES, _LINE_S = 20, 60.0

Progress: TypeAlias = Callable[[int, int], None]
"""Is given how many are done, first those that were done before, and of how many."""


def show_progress(unit: str) -> Progress:
    """Return a display with the time left: a bar, or lines without a terminal or tqdm.

    Args:
        unit: what is counted, in the singular.
    """
    try:
        tqdm = importlib.import_module("tqdm").tqdm if sys.stderr.isatty() else None
    except ImportError:
        tqdm = None
    return _bar(tqdm, unit) if tqdm is not None else _Lines(unit)


class _Lines:
    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._began: tuple[float, int] | None = None
        self._said_at, self._said = -_LINE_S, -1

    def __call__(self, done: int, total: int) -> None:
        now, step = time.monotonic(), max(1, total // _LINES)
        began_at, first = self._began = self._began or (now, done)
        is_next = done // step != self._said // step or now - self._said_at >= _LINE_S
        if not is_next and done != total:
            return
        self._said_at, self._said = now, done
        left = ""
        if first < done < total:
            left = f", {(now - began_at) / (done - first) * (total - done):.0f} s left"
        print(f"{done} of {total} {self._unit}s{left}", file=sys.stderr, flush=True)


def _bar(tqdm: Any, unit: str) -> Progress:
    bars: list[Any] = []

    def show(done: int, total: int) -> None:
        if not bars:
            bars.append(tqdm(total=total, initial=done, unit=unit))
        bars[0].update(done - bars[0].n)
        if done == total:
            bars[0].close()

    return show

"""Find answers that are not what they must be; a suite names them in ``SuiteResult.wrong``.

A result with wrong answers is printed, fails ``python -m bench`` and is never written.
"""

from __future__ import annotations

from collections.abc import Iterable

from bench.results import Row


def too_many(rows: Iterable[Row], metric: str, most: float = 0.0) -> tuple[str, ...]:
    """Name the rows of a metric whose figure is above what is allowed.

    For counts of differences (``different_answers``, at most 0) and for the differences themselves
    (``max_abs_difference``, at most its bound).
    """
    return tuple(
        f"{row.system}, {row.workload}: {metric} is {row.median:g}, must be at most {most:g}"
        for row in rows
        if row.metric == metric and not row.median <= most
    )

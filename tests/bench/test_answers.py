from __future__ import annotations

import math

import pytest

from bench.answers import too_many
from bench.results import Row


def _row(metric: str, median: float, n: int = 9) -> Row:
    return Row("ours", "64 users", metric, median, None, n)


def test_a_difference_is_named() -> None:
    rows = [_row("different_answers", 0), _row("different_answers", 2), _row("other", 5)]
    assert too_many(rows, "different_answers") == (
        "ours, 64 users: different_answers is 2, must be at most 0",
    )


@pytest.mark.parametrize(("found", "is_wrong"), [(1e-6, False), (1.1e-6, True), (math.nan, True)])
def test_a_difference_may_have_a_bound(found: float, is_wrong: bool) -> None:
    wrong = too_many([_row("max_abs_difference", found)], "max_abs_difference", 1e-6)
    assert bool(wrong) is is_wrong

from __future__ import annotations

import math

import pytest

from bench.answers import too_few, too_many
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


def test_what_must_be_equal_is_counted_in_full() -> None:
    rows = [_row("queries_equal", 9), _row("queries_equal", 8), _row("other", 0)]
    assert too_few(rows, "queries_equal") == ("ours, 64 users: queries_equal is 8, must be all 9",)

"""How many rows a forward may have, by the forwards before it."""

from __future__ import annotations

import pytest

from rag_accel.engines.llm.local.pace import Pace
from rag_accel.engines.llm.local.schedule import LEAST_CHUNK


@pytest.fixture
def pace() -> Pace:
    return Pace(most_rows=512, most_s=0.25)


def test_before_anything_is_known_a_forward_has_all_it_may(pace: Pace) -> None:
    assert pace.rows(decodes=True) == 512


def test_rows_fill_what_a_forward_leaves_beside_its_least_time(pace: Pace) -> None:
    pace.ran(8, 0.05)
    pace.ran(100, 0.15)
    assert pace.rows(decodes=True) == pytest.approx(200, abs=1)


@pytest.mark.parametrize("rows", [20, 100, 400])
def test_small_forwards_say_the_same_as_large_ones(pace: Pace, rows: int) -> None:
    pace.ran(1, 0.05)
    for _ in range(3):
        pace.ran(rows, 0.05 + 0.001 * rows)
    assert pace.rows(decodes=True) == pytest.approx(200, abs=1)


@pytest.mark.parametrize("least_s", [0.1, 0.3])
def test_a_piece_is_never_smaller_than_the_least(pace: Pace, least_s: float) -> None:
    pace.ran(1, least_s)
    pace.ran(100, 10.0)
    assert pace.rows(decodes=True) == LEAST_CHUNK


def test_the_last_forward_counts_half(pace: Pace) -> None:
    pace.ran(100, 0.1)
    pace.ran(100, 0.3)
    assert pace.rows(decodes=True) == 125


def test_a_forward_that_took_less_than_the_least_is_left_out(pace: Pace) -> None:
    pace.ran(1, 0.05)
    pace.ran(100, 0.15)
    pace.ran(100, 0.04)
    assert pace.rows(decodes=True) == pytest.approx(200, abs=1)


def test_where_nothing_decodes_a_forward_may_take_four_times_as_long(pace: Pace) -> None:
    pace.ran(100, 0.25)
    assert pace.rows(decodes=True) == 100
    assert pace.rows(decodes=False) == 400
